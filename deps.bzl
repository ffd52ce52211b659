"""All dependencies of gpipe, for projects that have a WORKSPACE file.

    load("@gpipe//:deps.bzl", "gpipe_dependencies")
    gpipe_dependencies()

A repository that the project has already declared is not declared again. So the
project can choose, for example, another Abseil. With bzlmod (MODULE.bazel) this
file is not read.
"""

load("//third_party:system.bzl", "system_repository")
load("//third_party/cuda:cuda.bzl", "cuda_toolkit_repository")
load("//third_party/libtorch:libtorch.bzl", "libtorch_repository")

# Maps a repository name to the folder of this tree that becomes the repository, or to ""
# if third_party/system.bzl writes it.
_FROM_THIS_TREE = {
    # System libraries, under the labels of their upstream projects.
    "com_github_gflags_gflags": "third_party/gflags",
    "com_github_google_benchmark": "third_party/google_benchmark",
    "com_github_google_glog": "third_party/glog",
    "com_github_nlohmann_json": "third_party/nlohmann_json",
    "com_google_absl": "third_party/absl",
    "com_google_googletest": "third_party/googletest",
    "libjpeg": "third_party/libjpeg_turbo",
    "libpng": "third_party/libpng",
    "tcmalloc": "",

    # Loaded by Bazel's own tools. Without these Bazel would download them.
    "remote_coverage_tools": "",
    "rules_cc": "",
}

# The same for folders of Debian's packages, for Debian's Bazel. Its Bazel 4 needs
# rules_java, its Bazel 7 the other two. A missing folder is no error if Bazel does not
# need it. Another Bazel that reads WORKSPACE needs rules_java, too. There the project
# declares it first if the folder is missing (docs/targets.md).
_FROM_DEBIAN = {
    "bazel_skylib": "/usr/share/bazel/tools/skylib",
    "rules_java": "/usr/share/bazel/rules/java",
    "rules_python": "/usr/share/bazel/rules/python",
}

def gpipe_dependencies():
    """Declares the repositories that gpipe's targets depend on."""
    for name, folder in _FROM_THIS_TREE.items():
        if not native.existing_rule(name):
            system_repository(name = name, folder = folder)
    for name, path in _FROM_DEBIAN.items():
        if not native.existing_rule(name):
            native.local_repository(name = name, path = path)
    if not native.existing_rule("cuda_toolkit"):
        cuda_toolkit_repository(name = "cuda_toolkit")
    if not native.existing_rule("libtorch"):
        libtorch_repository(name = "libtorch")
