"""The C++ rules of this repository.

    load("//tools/build_defs:gpipe.bzl", "gpipe_cc_library", "gpipe_cc_test")

They are the rules of @rules_cc with our compile options, which .bazelrc cannot
give: a project that depends on gpipe has a .bazelrc of its own.
"""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")

_COPTS = [
    "-std=c++17",
    "-Wall",
    "-Wextra",
]

def gpipe_cc_library(name, copts = [], linkstatic = True, **kwargs):
    """cc_library with our options.

    Args:
      name: as in cc_library.
      copts: added to ours.
      linkstatic: no shared library of its own, so that a test is one file
        with everything but LibTorch in it, as a binary is.
      **kwargs: as in cc_library.
    """
    cc_library(
        name = name,
        copts = _COPTS + copts,
        linkstatic = linkstatic,
        **kwargs
    )

def gpipe_cc_binary(name, copts = [], srcs = None, **kwargs):
    """cc_binary with our options; `srcs` is [name].cc unless given.

    Args:
      name: as in cc_binary.
      copts: added to ours.
      srcs: as in cc_binary.
      **kwargs: as in cc_binary.
    """
    cc_binary(
        name = name,
        srcs = [name + ".cc"] if srcs == None else srcs,
        copts = _COPTS + copts,
        **kwargs
    )

def gpipe_cc_test(name, copts = [], srcs = None, deps = [], size = "small", **kwargs):
    """cc_test with our options, on GoogleTest's main unless a dep is GoogleTest.

    Args:
      name: as in cc_test.
      copts: added to ours.
      srcs: [name].cc unless given.
      deps: a label of @com_google_googletest here (:gtest for a test with a main
        of its own) stands in for the default, :gtest_main.
      size: "small", that is 60 s, unless given.
      **kwargs: as in cc_test.
    """
    googletest = [
        dep
        for dep in deps
        if dep.startswith("@com_google_googletest//")
    ]
    cc_test(
        name = name,
        size = size,
        srcs = [name + ".cc"] if srcs == None else srcs,
        copts = _COPTS + copts,
        linkstatic = True,
        deps = deps + ([] if googletest else ["@com_google_googletest//:gtest_main"]),
        **kwargs
    )
