"""The C++ rules of this repository.

    load("//tools/build_defs:gpipe.bzl", "gpipe_cc_library", "gpipe_cc_test")

They are the rules of @rules_cc with our compile options, which .bazelrc cannot
give: a project that depends on gpipe has a .bazelrc of its own.
"""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")
load(":precompiled.bzl", "precompiled_header", "with_precompiled")
load(":sanitized.bzl", "sanitized_test")

_COPTS = [
    "-std=c++20",
    "-Wall",
    "-Wextra",
]

# Tests take longer to compile than to run: clang needs 2.7 s for gpipe/skip_test.cc
# with -O0, 6.3 s with -O1.
_TEST_COPTS = _COPTS + ["-O0"]

_LIBTORCH_CUDA = "@libtorch//:cuda"

# The header of //tools/precompiled for targets that depend on LibTorch by one of these
# names, or by none of them (None).
_FOR_LIBRARIES = {
    "@libtorch//:torch": "modules",
    "@libtorch//:aten": "tensors",
    None: None,
}
_FOR_TESTS = {
    "@libtorch//:torch": "modules_and_googletest",
    "@libtorch//:aten": "tensors_and_googletest",
    None: "googletest",
}

def precompiled_for_libraries(name, deps):
    """Declares [name].cc as a precompiled header for libraries and binaries.

    Args:
      name: a value of _FOR_LIBRARIES.
      deps: the targets that provide the included files.
    """
    precompiled_header(name = name, copts = _COPTS, deps = deps)

def precompiled_for_tests(name, deps):
    """Declares [name].cc as a precompiled header for tests.

    Args:
      name: a value of _FOR_TESTS.
      deps: the targets that provide the included files.
    """
    precompiled_header(name = name, copts = _TEST_COPTS, deps = deps)

def _attributes(ours, copts, deps, precompiled = None):
    """Returns `copts` after `ours` and `deps`, with a precompiled header if wanted.

    The default is the header of LibTorch's name in `deps`. A target with copts of
    its own, or whose deps are a select(), gets none.
    """
    headers = _FOR_TESTS if ours == _TEST_COPTS else _FOR_LIBRARIES
    libtorch = _libtorch(deps)
    if precompiled and not libtorch:
        libtorch = "@libtorch//:torch"
    header = headers[libtorch]
    if precompiled == None:
        precompiled = not copts and type(deps) == "list"
    copts = ours + copts
    if precompiled and header:
        more_copts, more_deps = with_precompiled("//tools/precompiled:" + header)
        copts = copts + more_copts
        deps = deps + more_deps
    return dict(copts = copts, deps = deps)

def _libtorch(deps):
    """Returns LibTorch's name in `deps`, or None."""
    if type(deps) != "list":
        return None
    names = [dep for dep in deps if dep in _FOR_LIBRARIES]
    return names[0] if names else None

def gpipe_cc_library(
        name,
        copts = [],
        deps = [],
        linkstatic = True,
        precompiled = None,
        **kwargs):
    """cc_library with our options.

    Args:
      name: as in cc_library.
      copts: added to ours.
      deps: as in cc_library.
      linkstatic: no shared library of its own, so that a test is one file
        with everything but LibTorch in it, as a binary is.
      precompiled: whether LibTorch's headers are read precompiled; if it is in
        `deps`, unless given. For a target that gets them by way of others.
      **kwargs: as in cc_library.
    """
    _library(_COPTS, name, copts, deps, precompiled, linkstatic = linkstatic, **kwargs)

def gpipe_cc_test_library(name, linkstatic = True, **kwargs):
    """gpipe_cc_library for tests alone, compiled as they are: -O0.

    Args:
      name: as in gpipe_cc_library.
      linkstatic: as in gpipe_cc_library.
      **kwargs: as in gpipe_cc_library.
    """
    _library(_TEST_COPTS, name, linkstatic = linkstatic, testonly = True, **kwargs)

def _library(ours, name, copts = [], deps = [], precompiled = None, **kwargs):
    kwargs.update(_attributes(ours, copts, deps, precompiled))
    cc_library(name = name, **kwargs)

def gpipe_cc_binary(name, copts = [], srcs = None, deps = [], precompiled = None, **kwargs):
    """cc_binary with our options; `srcs` is [name].cc unless given.

    One that has LibTorch in `deps` sees the GPUs under --config=cuda.

    Args:
      name: as in cc_binary.
      copts: added to ours.
      srcs: as in cc_binary.
      deps: as in cc_binary.
      precompiled: as in gpipe_cc_library.
      **kwargs: as in cc_binary.
    """
    if _libtorch(deps):
        deps = deps + [_LIBTORCH_CUDA]
    kwargs.update(_attributes(_COPTS, copts, deps, precompiled))
    cc_binary(
        name = name,
        srcs = [name + ".cc"] if srcs == None else srcs,
        **kwargs
    )

def gpipe_cc_test(
        name,
        copts = [],
        srcs = None,
        deps = [],
        precompiled = None,
        size = "small",
        **kwargs):
    """cc_test with our options, on GoogleTest's main unless a dep is GoogleTest.

    Args:
      name: as in cc_test.
      copts: added to ours.
      srcs: [name].cc unless given.
      deps: a label of @com_google_googletest here (:gtest for a test with a main
        of its own) stands in for the default, :gtest_main.
      precompiled: as in gpipe_cc_library.
      size: "small", that is 60 s, unless given.
      **kwargs: as in cc_test.
    """
    googletest = [
        dep
        for dep in deps
        if dep.startswith("@com_google_googletest//")
    ]
    if not googletest:
        deps = deps + ["@com_google_googletest//:gtest_main"]
    kwargs.update(_attributes(_TEST_COPTS, copts, deps, precompiled))
    cc_test(
        name = name,
        size = size,
        srcs = [name + ".cc"] if srcs == None else srcs,
        linkstatic = True,
        **kwargs
    )

def gpipe_device_test(name, srcs = None, deps = [], size = "small", tags = [], **kwargs):
    """Tests that run on the devices of each variant.

    [name]_cpu; [name]_simulated, on four simulated accelerators; and
    [name]_cuda, which is skipped but under --config=cuda. [name] is all of them.
    The sources are compiled once. They ask gpipe/testing/devices.h where to put
    things, and are linked with an answer per variant.

    Args:
      name: the common part of the variants' names.
      srcs: [name].cc unless given.
      deps: of the source; GoogleTest and devices.h are there already.
      size: as in cc_test.
      tags: as in cc_test.
      **kwargs: as in cc_library, for the source.
    """
    _library(
        _TEST_COPTS,
        name + "_source",
        testonly = True,
        srcs = [name + ".cc"] if srcs == None else srcs,
        deps = deps + [
            "//gpipe/testing:devices",
            "@com_google_googletest//:gtest",
        ],
        alwayslink = True,
        visibility = ["//visibility:private"],
        **kwargs
    )
    variants = {
        "cpu": [],
        "simulated": [],
        "cuda": select({
            "//third_party/cuda:enabled": [],
            "//conditions:default": ["//third_party/cuda:unavailable"],
        }),
    }
    for variant, compatible_with in variants.items():
        cc_test(
            name = name + "_" + variant,
            size = size,
            tags = tags + [variant],
            linkstatic = True,
            target_compatible_with = compatible_with,
            deps = [
                ":" + name + "_source",
                "//gpipe/testing:devices_" + variant,
                "@com_google_googletest//:gtest_main",
            ],
        )
    native.test_suite(
        name = name,
        tests = [":" + name + "_" + variant for variant in variants],
    )

def gpipe_sanitized_test(name, test, sanitizers, size = "small", **kwargs):
    """A test of this package once more, with sanitizers.

    Costs the compiling of all that it is linked with.

    Args:
      name: of the second one.
      test: the label of the first one.
      sanitizers: "address", "undefined", "thread".
      size: as in cc_test.
      **kwargs: as in any test.
    """
    sanitized_test(
        name = name,
        size = size,
        test = test,
        sanitizers = sanitizers,
        **kwargs
    )

def gpipe_fuzz_test(
        name,
        deps = [],
        runs = 100000,
        sanitized = True,
        **kwargs):
    """A fuzz target, run for a while by a driver of ours, and by libFuzzer.

    [name].cc defines libFuzzer's LLVMFuzzerTestOneInput(), and, if it likes,
    LLVMFuzzerCustomMutator(); what it demands of its parser is said with
    gpipe/testing/fuzz/check.h. The files of [name]_corpus are what inputs begin
    as, and [name].dict, if it is there, has words of the format. An input that
    has found a bug becomes a file of the corpus.

    [name] is a test: each file of the corpus, and `runs` inputs made of them,
    the same ones every time (gpipe/testing/fuzz/driver.cc). [name]_libfuzzer is
    a program for clang, see tools/fuzz.sh.

    Args:
      name: the source is [name].cc.
      deps: of the source; check.h is there already.
      runs: how many inputs.
      sanitized: whether the test is built with ASan and UBSan, which costs the
        compiling of all that it is linked with. Else it is as other tests are.
      **kwargs: as in cc_library, for the source.
    """
    folder = name + "_corpus"
    files = native.glob([folder + "/*"])
    dictionary = native.glob([name + ".dict"])
    if not files:
        fail("%s needs files in %s" % (name, folder))
    package = native.package_name()
    args = ["--runs=%d" % runs, package + "/" + folder]
    if dictionary:
        args.append("--dictionary=" + package + "/" + dictionary[0])

    _library(
        _COPTS,
        name + "_target",
        testonly = True,
        srcs = [name + ".cc"],
        deps = deps + ["//gpipe/testing/fuzz:check"],
        alwayslink = True,
        visibility = ["//visibility:private"],
        **kwargs
    )
    test = dict(
        size = "medium",
        args = args,
    )
    cc_test(
        name = name + "_plain" if sanitized else name,
        data = files + dictionary,
        linkstatic = True,
        tags = ["manual"] if sanitized else ["fuzz"],
        deps = [
            ":" + name + "_target",
            "//gpipe/testing/fuzz:driver",
        ],
        **test
    )
    if sanitized:
        gpipe_sanitized_test(
            name = name,
            test = ":" + name + "_plain",
            sanitizers = ["address", "undefined"],
            tags = ["fuzz"],
            **test
        )
    cc_binary(
        name = name + "_libfuzzer",
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        linkstatic = True,
        tags = ["manual"],
        deps = [":" + name + "_target"],
    )
