"""Downloads a wheel by pip and unpacks parts of it, once, into a cache.

    fetch_wheel.py NAME==VERSION ARCH SHA256|unknown FOLDER MEMBER...

Files of the wheel whose path starts with one of MEMBER are unpacked into FOLDER.
FOLDER appears complete or not at all, even if two builds run this at the same
time. pip does the download, so its settings (index, proxy, certificates) apply.
"""

import fcntl
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile


def download(requirement, arch, into):
    # The C++ part is the same in the wheels for all Python versions. So this
    # always requests the same wheel, whatever Python runs it.
    command = [sys.executable, "-m", "pip", "download", "--no-deps",
               "--no-cache-dir", "--disable-pip-version-check",
               "--only-binary=:all:", "--implementation=cp",
               "--python-version=3.11", "--abi=cp311", "--abi=abi3",
               "--abi=none", "--dest", str(into), requirement]
    for tag in ["manylinux_2_28", "manylinux_2_27", "manylinux_2_25",
                "manylinux_2_18", "manylinux_2_17", "manylinux2014"]:
        command.append(f"--platform={tag}_{arch}")
    # pip's output goes to stderr, since a Bazel repository rule shows that.
    subprocess.run(command, check=True, stdout=sys.stderr)
    wheels = list(into.glob("*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"pip gave {len(wheels)} wheels for {requirement}")
    return wheels[0]


def check(wheel, sha256):
    if sha256 == "unknown":
        print(f"{wheel.name}: no known checksum for this machine's architecture",
              file=sys.stderr)
        return
    digest = hashlib.sha256()
    with open(wheel, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != sha256:
        raise SystemExit(f"{wheel.name} has SHA-256 {digest.hexdigest()}, not "
                         f"{sha256}: not the wheel that gpipe was tested with")


def main():
    requirement, arch, sha256, folder, *members = sys.argv[1:]
    folder = pathlib.Path(folder)
    if folder.exists():
        return  # Without the lock: the cache may be read-only, or that of another user.
    folder.parent.mkdir(parents=True, exist_ok=True)
    # So that an interrupted build removes what it has downloaded. nohup ignores SIGHUP.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    with open(folder.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return
        temporary = pathlib.Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            wheel = download(requirement, arch, temporary)
            check(wheel, sha256)
            unpacked = temporary / "unpacked"
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist()
                         if name.startswith(tuple(members))]
                if not names:
                    raise SystemExit(f"{wheel.name} holds none of {members}")
                archive.extractall(unpacked, names)
            os.rename(unpacked, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    main()
