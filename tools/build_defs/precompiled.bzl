"""g++ reads a header once for all files that begin with it.

Most of the time of a build is the reading of LibTorch's headers, 8 of 10 s a file.
"""

load("@rules_cc//cc:defs.bzl", "cc_library")

def precompiled_header(name, srcs, deps, copts):
    """[name].h, which is the text of `srcs`, with g++'s own form of it beside.

    A target that has this among its deps and `-include` of [name].h among its
    copts gets all that `srcs` includes. g++ opens the form in the place of the
    text; another compiler reads the text.

    Args:
      name: of the target and the header.
      srcs: one file, which includes.
      deps: where from.
      copts: all of those of the targets that use it. With others g++ refuses the
        form, or crashes (-O1 for -O2).
    """

    # Compiled as any other file, so that all other options are the same too. The
    # object that Bazel thinks it gets is the precompiled header.
    cc_library(
        name = name + "_object",
        srcs = srcs,
        copts = copts + ["-xc++-header"],
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
        srcs = srcs + [":" + name + "_objects"],
        outs = [name + ".h", name + ".h.gch"],
        cmd = "cp $(execpath %s) $(@D)/%s.h && cp $(execpath :%s) $(@D)/%s.h.gch" % (
            srcs[0],
            name,
            name + "_objects",
            name,
        ),
        tags = ["manual"],
    )
    cc_library(
        name = name,
        hdrs = [name + ".h", name + ".h.gch"],
        tags = ["manual"],
        visibility = ["//visibility:public"],
    )

def _flag_impl(_ctx):
    return []

precompile_flag = rule(
    implementation = _flag_impl,
    doc = "Whether precompiled headers are used: --//PACKAGE:NAME, or --//PACKAGE:NAME=false.",
    build_setting = config.bool(flag = True),
)
