"""Precompiled headers: compiled once for all files that start with them.

Without them, most of a build's time is the parsing of LibTorch's headers: 8 of 10 s
per file with g++.
"""

load("@rules_cc//cc:defs.bzl", "cc_library")

# Options to write a precompiled header, in addition to -xc++-header:
#   -fpch-instantiate-templates: instantiates templates in the header, not in every
#     file that opens it (5.8 -> 3.5 s for gpipe/runtime/cell/cell.cc).
#   -fno-pch-timestamp, -relocatable-pch: leaves times and absolute paths out of the
#     result, so that a disk cache works for every checkout. Bazel tells clang that its
#     folder is /proc/self/cwd.
_WRITE = {
    "clang": [
        "-fpch-instantiate-templates",
        "-Xclang",
        "-fno-pch-timestamp",
        "-relocatable-pch",
        "-isysroot",
        "/proc/self/cwd",
    ],
    "gcc": [],
}

# Options to open a precompiled header: the folder that its relative paths start from.
_OPEN = {
    "clang": ["-isysroot", "."],
    "gcc": [],
}

def _select(values):
    """Returns the list for the compiler in use, or [] without precompiled headers."""
    choices = {
        "//tools/precompiled:by_" + compiler: value
        for compiler, value in values.items()
    }
    choices["//conditions:default"] = []
    return select(choices)

def with_precompiled(header):
    """Returns attributes for a target whose files start with a precompiled header.

    Args:
      header: the label of a precompiled_header.
    Returns:
      (copts, deps) to add to those of the target.
    """
    repository = native.repository_name().lstrip("@")
    folder = "$(BINDIR)/" + ("external/" + repository + "/" if repository else "")
    path = folder + header[2:].replace(":", "/") + ".h"
    copts = {
        compiler: flags + ["-include", path]
        for compiler, flags in _OPEN.items()
    }
    return _select(copts), _select({compiler: [header] for compiler in _OPEN})

def precompiled_header(name, deps, copts):
    """Compiles [name].cc to [name].h.gch, and copies its text to [name].h.

    A target with the attributes of with_precompiled() includes everything that
    [name].cc includes. The compiler opens [name].h.gch instead of [name].h.

    Args:
      name: the name of the target and of the header.
      deps: the targets that provide the included files.
      copts: all copts of the targets that open the header. With other options g++
        rejects the header or crashes (-O1 for -O2).
    """

    # Compiled as any other file, so that all options are equal. Bazel treats the
    # precompiled header as an object file.
    cc_library(
        name = name + "_object",
        srcs = [name + ".cc"],
        copts = copts + ["-xc++-header"] + _select(_WRITE),
        linkstatic = True,
        tags = ["manual"],
        deps = deps,
    )
    native.filegroup(
        name = name + "_objects",
        srcs = [":" + name + "_object"],
        output_group = "compilation_outputs",
        tags = ["manual"],
    )
    native.genrule(
        name = name + "_files",
        srcs = [name + ".cc", ":" + name + "_objects"],
        outs = [name + ".h", name + ".h.gch"],
        cmd = "cp $(execpath %s) $(@D)/%s.h && cp $(execpath :%s) $(@D)/%s.h.gch" % (
            name + ".cc",
            name,
            name + "_objects",
            name,
        ),
        tags = ["manual"],
    )
    cc_library(
        name = name,
        hdrs = [name + ".h", name + ".h.gch"],
        # clang lists it among the files that it has read.
        textual_hdrs = [name + ".cc"],
        tags = ["manual"],
        visibility = ["//visibility:public"],
    )

def _flag_impl(_ctx):
    return []

compiler_flag = rule(
    implementation = _flag_impl,
    doc = "The compiler that writes and opens precompiled headers: clang, gcc, or none.",
    build_setting = config.string(flag = True),
)
