"""Everything that gpipe needs, for projects that have a WORKSPACE file.

    load("@gpipe//:deps.bzl", "gpipe_dependencies")
    gpipe_dependencies()

Each repository is declared only if the project has not declared it before, so
that a project's own choice of, say, Abseil wins. With bzlmod (MODULE.bazel)
this file is not read.
"""

load("//third_party:system.bzl", "system_repository")
load("//third_party/cuda:cuda.bzl", "cuda_toolkit_repository")
load("//third_party/libtorch:libtorch.bzl", "libtorch_repository")

# Repository name -> folder of this tree whose files become that repository.
_FROM_THIS_TREE = {
    # Libraries of the system, under the labels of their upstream projects.
    "com_github_gflags_gflags": "third_party/gflags",
    "com_github_google_benchmark": "third_party/google_benchmark",
    "com_github_google_glog": "third_party/glog",
    "com_github_nlohmann_json": "third_party/nlohmann_json",
    "com_google_absl": "third_party/absl",
    "com_google_googletest": "third_party/googletest",
    "gloo": "third_party/gloo",
    "libjpeg": "third_party/libjpeg",
    "libpng": "third_party/libpng",

    # What Bazel's own tools load; without these it would go to the network.
    "remote_coverage_tools": "third_party/remote_coverage_tools",
    "rules_cc": "third_party/rules_cc",
}

# The same, from Debian's packages. Bazel 4 asks for rules_java, Bazel 7 for the
# other two; a path that is absent where nobody asks for it does no harm.
_FROM_DEBIAN = {
    "bazel_skylib": "/usr/share/bazel/tools/skylib",
    "rules_java": "/usr/share/bazel/rules/java",
    "rules_python": "/usr/share/bazel/rules/python",
}

def gpipe_dependencies():
    """Declares the repositories that gpipe's targets name."""
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
