"""A Python environment with the peers in it, outside of the repository."""

import os
import pathlib
import shutil
import subprocess
import sys
import venv

REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")
# A file in the folder: the line by which it is known, then what has been installed.
MARK = "gpipe-compare-peers.txt"
FIRST_LINE = "# tools/compare_peers makes and deletes venv/ and packages/ here.\n"


def default_folder():
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "gpipe" / "peers"


class Installation:
    """`python`, and the `environ`ment variables under which it finds the peers."""

    def __init__(self, python, packages=None):
        self.python = str(python)
        self.environ = {"PYTHONPATH": str(packages)} if packages else {}


def install(folder, python, say):
    """The peers in `folder`, as an Installation; what is there stays.

    Without a `python`, a virtual environment with PyTorch in it: some gigabytes,
    since PyTorch for Linux loads NVIDIA's libraries though no GPU is used, unless
    pip is told, as it reads it from PIP_INDEX_URL or pip.conf, of an index with
    builds for CPUs. With a `python` that has torch, that one, and a folder with
    what it lacks.
    """
    wanted = REQUIREMENTS.read_text(encoding="utf-8") + f"python: {python}\n"
    if _installed(folder) != wanted:
        _clear(folder)
        _fill(folder, python, say)
        _record(folder, wanted)
    if python:
        return Installation(python, folder / "packages")
    return Installation(folder / "venv" / "bin" / "python")


def _installed(folder):
    """What has been installed there; None if this program has not made the folder."""
    try:
        with open(folder / MARK, encoding="utf-8", errors="replace") as mark:
            return mark.read() if mark.readline() == FIRST_LINE else None
    except (FileNotFoundError, NotADirectoryError):
        return None


def _record(folder, installed):
    (folder / MARK).write_text(FIRST_LINE + installed, encoding="utf-8")


def _clear(folder):
    """Takes away what this program put there, and nothing else."""
    vacant = not folder.exists() or folder.is_dir() and not any(folder.iterdir())
    if not vacant and _installed(folder) is None:
        raise RuntimeError(
            f"{folder} is neither absent, nor an empty folder, nor one with this "
            f"program's {MARK}; choose another one by --venv"
        )
    folder.mkdir(parents=True, exist_ok=True)
    _record(folder, "not complete\n")
    for part in (folder / "venv", folder / "packages"):
        if part.exists():
            shutil.rmtree(part)


def _fill(folder, python, say):
    if python:
        say(f"installing torchgpipe and fairscale into {folder}, beside {python}")
        pins = [
            line
            for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines()
            if line and not line.startswith(("#", "torch=="))
        ]
        target = str(folder / "packages")
        _pip(python, "--no-deps", "--target", target, *pins)
        return
    say(f"installing PyTorch, torchgpipe and fairscale into {folder}: gigabytes")
    venv.create(folder / "venv", with_pip=True)
    _pip(folder / "venv" / "bin" / "python", "-r", str(REQUIREMENTS))


def _pip(python, *arguments):
    command = [str(python), "-m", "pip", "install", "--quiet"]
    command += ["--disable-pip-version-check", *arguments]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        raise RuntimeError(f"pip failed, see above: {' '.join(command)}")
