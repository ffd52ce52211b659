"""The installation of the peers in a Python environment outside of the repository."""

import os
import pathlib
import shutil
import subprocess
import sys
import venv

REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")
# A file that marks folders of this program. Its first line is FIRST_LINE; the others
# list what has been installed.
MARK = "gpipe-compare-peers.txt"
FIRST_LINE = "# tools/compare_peers makes and deletes venv/ and packages/ here.\n"


def default_folder():
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "gpipe" / "peers"


class Installation:
    """A path of Python, and the environment variables with which it finds the peers."""

    def __init__(self, python, packages=None):
        self.python = str(python)
        self.environ = {"PYTHONPATH": str(packages)} if packages else {}


def install(folder, python, say):
    """Installs the peers into `folder`, unless they are there; returns an Installation.

    `python`: a Python with torch. Then only the missing packages are installed, into a
    folder beside it. If it is empty, a virtual environment with PyTorch is made. That
    takes some gigabytes, since PyTorch for Linux includes NVIDIA's libraries even if
    no GPU is used. To avoid them, set PIP_INDEX_URL or pip.conf to an index with builds
    for CPUs.
    `say`: called with a text for people.
    """
    wanted = _wanted(python)
    if _installed(folder) != wanted:
        _clear(folder)
        _fill(folder, python, say)
        _record(folder, wanted)
    if python:
        return Installation(python, folder / "packages")
    return Installation(folder / "venv" / "bin" / "python")


def pack(folder, python, names, say):
    """Installs the named peers into `folder`, for a machine without a network.

    There, install() with this folder and this `python`, the name of a program on the
    PATH, installs nothing.
    """
    pins = [pin for pin in _pins() if pin.split("==")[0] in names]
    say(f"installing {', '.join(pins)} into {folder}")
    _pip(sys.executable, "--no-deps", "--target", str(folder / "packages"), *pins)
    _record(folder, _wanted(python))


def _wanted(python):
    return REQUIREMENTS.read_text(encoding="utf-8") + f"python: {python}\n"


def _pins():
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _installed(folder):
    """Returns what is installed, or None if the folder is not this program's."""
    try:
        with open(folder / MARK, encoding="utf-8", errors="replace") as mark:
            return mark.read() if mark.readline() == FIRST_LINE else None
    except (FileNotFoundError, NotADirectoryError):
        return None


def _record(folder, installed):
    (folder / MARK).write_text(FIRST_LINE + installed, encoding="utf-8")


def _clear(folder):
    """Deletes what this program installed, and nothing else.

    Raises RuntimeError if the folder has other content.
    """
    vacant = not folder.exists() or folder.is_dir() and not any(folder.iterdir())
    if not vacant and _installed(folder) is None:
        raise RuntimeError(
            f"{folder} exists, is not empty and has no {MARK} of this program; choose "
            "another folder with --venv"
        )
    folder.mkdir(parents=True, exist_ok=True)
    _record(folder, "not complete\n")
    for part in (folder / "venv", folder / "packages"):
        if part.exists():
            shutil.rmtree(part)


def _fill(folder, python, say):
    if python:
        say(f"installing torchgpipe, fairscale and transformers into {folder}, beside {python}")
        pins = [pin for pin in _pins() if not pin.startswith("torch==")]
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
