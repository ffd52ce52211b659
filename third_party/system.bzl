"""Makes a repository from a folder of this tree, or from a few files that are written here.

local_repository would work in this tree. But its path is relative to the main
workspace, so it fails if gpipe is an external repository. A label works in both
cases.
"""

# The files of repositories without a folder in this tree, by their paths.
_FILES = {
    # The system's TCMalloc of gperftools (libtcmalloc-minimal4), for the attribute `malloc`
    # of a cc_binary. Debian has the name without a version only in libgoogle-perftools-dev,
    # which brings much that is not needed. No symbol is its own, so a linker would leave it
    # out without --no-as-needed.
    "tcmalloc": {"BUILD": """load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "tcmalloc",
    linkopts = [
        "-Wl,--push-state,--no-as-needed",
        "-l:libtcmalloc_minimal.so.4",
        "-Wl,--pop-state",
    ],
    visibility = ["//visibility:public"],
)
"""},
    # Bazel 4 needs this label for any test, even without coverage. The real tool
    # would have to be downloaded.
    "remote_coverage_tools": {
        "BUILD": """sh_binary(
    name = "coverage_report_generator",
    srcs = ["none.sh"],
    visibility = ["//visibility:public"],
)
""",
        "none.sh": """#!/bin/sh
echo "no coverage tool in this build" >&2
exit 1
""",
    },
    # The native C++ rules under the names of @rules_cc, for WORKSPACE builds.
    # Debian's own rules_cc is too new for Debian's Bazel 4.2.3. With bzlmod the real
    # module is used.
    "rules_cc": {
        "BUILD": "",
        "cc/BUILD": "",
        "cc/defs.bzl": "".join(["%s = native.%s\n" % (rule, rule) for rule in [
            "cc_binary",
            "cc_import",
            "cc_library",
            "cc_proto_library",
            "cc_test",
            "cc_toolchain",
            "cc_toolchain_suite",
            "fdo_prefetch_hints",
            "fdo_profile",
            "objc_import",
            "objc_library",
        ]]),
    },
}

def _system_repository_impl(ctx):
    for path, text in ctx.attr.files.items():
        ctx.file(path, text)
    if ctx.attr.folder:
        # Starts from the root package. A label of the folder itself is not
        # possible: the folder is in .bazelignore and so is not a package.
        folder = ctx.path(Label("//:deps.bzl")).dirname
        for part in ctx.attr.folder.split("/"):
            folder = folder.get_child(part)
        for entry in folder.readdir():
            ctx.symlink(entry, entry.basename)
    ctx.file("WORKSPACE", "workspace(name = \"{}\")\n".format(ctx.name))

_system_repository = repository_rule(
    implementation = _system_repository_impl,
    attrs = {
        "files": attr.string_dict(),
        "folder": attr.string(),
    },
    # Runs again when the Bazel server starts, so that new files in the folder
    # are found. This costs only a few symlinks.
    local = True,
)

def system_repository(name, folder = ""):
    """Declares a repository.

    Args:
      name: its name; without `folder`, one of those of this file.
      folder: the folder, relative to gpipe's root, whose entries it gets.
    """
    _system_repository(name = name, folder = folder, files = {} if folder else _FILES[name])
