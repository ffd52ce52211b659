"""@libtorch: the LibTorch of this machine, or a pinned one that is downloaded.

The search order is:

1. the environment variable LIBTORCH (or TORCH_PATH): a folder with include/ and
   lib/, such as an unpacked LibTorch or an installed Python torch;
2. the torch that `python3` would import (it is located, but not imported, since
   that takes seconds);
3. the wheel pinned below, downloaded by pip into GPIPE_CACHE (~/.cache/gpipe).
   `bazel clean` does not delete it.

No file is copied: the libraries (1 GB) stay in place, and binaries find them by
absolute path. So a wheel's own $ORIGIN paths need not work in Bazel's folders
of links.
"""

# The minor versions of LibTorch 2 that gpipe/libtorch supports. The C++ API
# changes between them, so another version would fail in the middle of a long
# build.
_OLDEST = 11
_NEWEST = 15

# The wheel of the newest version, and the CUDA libraries that its
# libtorch_cpu.so needs even without a GPU.
_WHEELS = {
    "torch": struct(
        version = "2.15.0",
        sha256 = {"x86_64": "48c2d861134c0b5697c7602cb5ffa68f62a2989fdcd1717e593356f67996ca1e"},
        members = ["torch/include/", "torch/lib/", "torch/version.py"],
    ),
    "nvidia-cuda-runtime": struct(
        version = "13.2.86",
        sha256 = {"x86_64": "3498247680dfddce31bad102af7e3e26fc795342a3cac64722bb0fa95e7f60f0"},
        members = ["nvidia/cu13/lib/"],
    ),
    "nvidia-cuda-cupti": struct(
        version = "13.2.86",
        sha256 = {"x86_64": "8fa29f15dd8336181f961764d9d95236fc6b931dd0c8fcf8cd70aab0c310b586"},
        members = ["nvidia/cu13/lib/"],
    ),
}

_RANGE = "2.{} to 2.{}".format(_OLDEST, _NEWEST)

_INSTRUCTIONS = """
To choose a LibTorch by hand, set LIBTORCH to a folder with its include/ and
lib/, in the environment or in user.bazelrc:
    build --repo_env=LIBTORCH=/path/to/torch
`pip install torch=={version}` in the Python on the PATH does as well.
""".format(version = _WHEELS["torch"].version)

def _fail(message):
    fail("\n\n@libtorch: " + message + "\n" + _INSTRUCTIONS)

def _is_libtorch(root):
    return (root.get_child("include").get_child("c10").exists and
            root.get_child("lib").get_child("libtorch_cpu.so").exists)

def _version(ctx, root):
    """Returns "2.11.0" from LibTorch's headers, or "of unknown version"."""
    include = str(root.get_child("include"))
    header = ctx.path(include + "/torch/headeronly/version.h")
    if not header.exists:  # before 2.9
        header = ctx.path(include + "/torch/csrc/api/include/torch/version.h")
    if not header.exists:
        return "of unknown version"
    numbers = {}
    for line in ctx.read(header).split("\n"):
        words = line.split(" ")
        if len(words) == 3 and words[0] == "#define":
            numbers[words[1]] = words[2].strip()
    return ".".join([
        numbers.get("TORCH_VERSION_" + part, "?")
        for part in ["MAJOR", "MINOR", "PATCH"]
    ])

def _is_accepted(version):
    """Returns whether gpipe is tested with `version`, such as "2.11.0"."""
    numbers = version.split(".")
    return (len(numbers) >= 2 and numbers[0] == "2" and numbers[1].isdigit() and
            int(numbers[1]) >= _OLDEST and int(numbers[1]) <= _NEWEST)

def _fetch(ctx, name):
    """Returns the folder of an unpacked wheel. Downloads it if necessary."""
    wheel = _WHEELS[name]
    cache = ctx.os.environ.get("GPIPE_CACHE", "")
    if not cache:
        home = ctx.os.environ.get("HOME", "")
        if not home:
            _fail("neither GPIPE_CACHE nor HOME says where to put a download.")
        cache = home + "/.cache/gpipe"
    arch = ctx.execute(["uname", "-m"]).stdout.strip()
    folder = ctx.path("{}/{}-{}-{}".format(cache, name, wheel.version, arch))
    if folder.exists:
        return folder

    # Takes the first Python that has pip. The one on the PATH may have none.
    python = None
    for candidate in ["python3", "/usr/bin/python3"]:
        if ctx.execute([candidate, "-m", "pip", "--version"]).return_code == 0:
            python = candidate
            break
    if not python:
        _fail("no python3 with pip to download {} (Debian: apt-get install python3-pip).".format(name))
    ctx.report_progress("downloading {} {}".format(name, wheel.version))
    result = ctx.execute(
        [
            python,
            ctx.path(Label("//third_party/libtorch:fetch_wheel.py")),
            name + "==" + wheel.version,
            arch,
            wheel.sha256.get(arch, "unknown"),
            folder,
        ] + wheel.members,
        timeout = 3600,
        quiet = False,
    )
    if result.return_code != 0:
        _fail("the download of {}=={} failed:\n{}".format(name, wheel.version, result.stderr[-3000:]))
    return folder

def _find_root(ctx):
    for variable in ["LIBTORCH", "TORCH_PATH"]:
        value = ctx.os.environ.get(variable, "")
        if value:
            root = ctx.path(value)
            if not _is_libtorch(root) and _is_libtorch(root.get_child("torch")):
                root = root.get_child("torch")
            if not _is_libtorch(root):
                _fail("{}={} has no include/c10 and lib/libtorch_cpu.so.".format(variable, value) +
                  " (Debian's libtorch-dev is 1.13, which is too old.)")
            return root

    found = ctx.execute([
        "python3",
        "-c",
        "import importlib.util as u; s = u.find_spec('torch'); " +
        "print(s.submodule_search_locations[0] if s and s.submodule_search_locations else '')",
    ])
    if found.return_code == 0 and found.stdout.strip():
        root = ctx.path(found.stdout.strip())
        if _is_libtorch(root):
            if _is_accepted(_version(ctx, root)):
                return root

            # Not an error: this torch was not chosen for gpipe.
            # buildifier: disable=print
            print("@libtorch: not using the torch of python3 in {}: it is {}, and gpipe accepts {}".format(
                root,
                _version(ctx, root),
                _RANGE,
            ))

    return _fetch(ctx, "torch").get_child("torch")

def _check(ctx, root):
    version = _version(ctx, root)
    if not _is_accepted(version):
        _fail("{} is LibTorch {}; gpipe accepts {}.".format(root, version, _RANGE))
    lib = str(root.get_child("lib"))
    if ctx.execute(["grep", "-q", "NSt7__cxx11", lib + "/libc10.so"]).return_code != 0:
        _fail(lib + " was built with _GLIBCXX_USE_CXX11_ABI=0; its strings are not g++'s.")
    return version

_TOOLKIT_FOLDERS = [
    "lib64",
    "lib",
    "targets/x86_64-linux/lib",
    "targets/sbsa-linux/lib",
    "extras/CUPTI/lib64",
]

def _library_folders(ctx, root):
    """Returns the folders that may contain the libraries that LibTorch needs."""
    folders = [root.get_child("lib")]
    beside = root.dirname.get_child("nvidia")  # the wheels that pip installs with torch
    if beside.exists:
        folders += [package.get_child("lib") for package in beside.readdir()]
    for home in [ctx.os.environ.get(v, "") for v in ["CUDA_HOME", "CUDA_PATH"]] + ["/usr/local/cuda"]:
        if home:
            folders += [
                ctx.path(home + "/" + part)
                for part in _TOOLKIT_FOLDERS
            ]
    return [folder for folder in folders if folder.exists]

def _cuda_needs(ctx, root):
    """Returns the folders with the CUDA libraries that libtorch_cpu.so needs."""
    library = str(root.get_child("lib").get_child("libtorch_cpu.so"))
    folders = []
    for stem, wheel in [("libcudart", "nvidia-cuda-runtime"), ("libcupti", "nvidia-cuda-cupti")]:
        # -m1: the names of needed libraries are near the beginning of this file
        # of 400 MB. A CPU-only LibTorch has no such name.
        named = ctx.execute(
            ["grep", "-a", "-o", "-m1", stem + "[.]so[.][0-9]*", library],
            environment = {"LC_ALL": "C"},
        ).stdout.split("\n")[0]
        if not named:
            continue
        found = None
        for folder in _library_folders(ctx, root):
            if folder.get_child(named).exists:
                found = folder
                break
        if not found:
            if not named.endswith(".so.13"):
                _fail("{} needs {}, which is in no CUDA Toolkit here; set CUDA_HOME.".format(root, named))
            found = _fetch(ctx, wheel).get_child("nvidia").get_child("cu13").get_child("lib")
        if str(found) not in folders:
            folders.append(str(found))
    return folders

def linkopt_path(path):
    """Returns a path as a part of a linkopt.

    Bazel expands variables in linkopts as make does, and splits them as a shell does.

    Args:
      path: the path, which may have blanks.
    """
    return "'" + path.replace("$", "$$").replace("'", "'\\''") + "'"

def _libtorch_repository_impl(ctx):
    root = _find_root(ctx)
    version = _check(ctx, root)
    lib = str(root.get_child("lib"))
    has_cuda = root.get_child("lib").get_child("libtorch_cuda.so").exists

    needs = [folder for folder in _cuda_needs(ctx, root) if folder != lib]
    folders = [lib] + needs
    cuda_folders = [str(f) for f in _library_folders(ctx, root) if str(f) not in folders] if has_cuda else []

    ctx.symlink(root.get_child("include"), "include")
    ctx.symlink(root.get_child("lib"), "lib")
    ctx.template(
        "BUILD",
        Label("//third_party/libtorch:libtorch.BUILD.tpl"),
        substitutions = {
            "%{cuda_folders}": repr([linkopt_path(folder) for folder in cuda_folders]),
            "%{folders}": repr([linkopt_path(folder) for folder in folders]),
            "%{lib}": repr(linkopt_path(lib)),
        },
    )
    ctx.file("root", str(root) + "\n")  # for @cuda_toolkit
    ctx.file("version.bzl", "".join([
        '"""What @libtorch found."""\n\n',
        "TORCH_VERSION = {}\n".format(repr(version)),
        "TORCH_HAS_CUDA = {}\n".format(has_cuda),
        "TORCH_LIBRARY_FOLDERS = {}\n".format(repr(folders)),
    ]))
    ctx.file("WORKSPACE", "workspace(name = \"{}\")\n".format(ctx.name))

libtorch_repository = repository_rule(
    implementation = _libtorch_repository_impl,
    # If one of these changes, Bazel runs this rule again.
    environ = [
        "CONDA_PREFIX",
        "CUDA_HOME",
        "CUDA_PATH",
        "GPIPE_CACHE",
        "LIBTORCH",
        "TORCH_PATH",
        "VIRTUAL_ENV",
    ],
    doc = "LibTorch as @libtorch//:torch and, under --config=cuda, @libtorch//:cuda.",
)
