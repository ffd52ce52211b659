"""The C++ rules of this repository.

    load("//tools/build_defs:gpipe.bzl", "gpipe_cc_library", "gpipe_cc_test")

They are the rules of @rules_cc with gpipe's compile options. The options are not in
.bazelrc, since a project that depends on gpipe has a .bazelrc of its own.
"""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")
load(":precompiled.bzl", "precompiled_header", "with_precompiled")
load(":sanitized.bzl", "sanitized_test")

_COPTS = [
    "-std=c++20",
    "-Wall",
    "-Wextra",
]

# The folders of programs, which spend their time in gpipe and LibTorch. clang compiles
# them with -O1 in 70 % of the time that -O2 takes (docs/results/release.md).
_PROGRAM_FOLDERS = ["benchmarks", "examples", "tools", "training/program"]

def _has_programs():
    """Returns whether this package is in a folder of programs."""
    package = native.package_name() + "/"
    return any([package.startswith(folder + "/") for folder in _PROGRAM_FOLDERS])

# Tests take longer to compile than to run: clang needs 2.7 s for gpipe/system_tests/skip_test.cc
# with -O0, 6.3 s with -O1.
_TEST_COPTS = _COPTS + ["-O0"]

_LIBTORCH_CUDA = "@libtorch//:cuda"

# The number of test files that are compiled as one. A group of six opens LibTorch's
# precompiled header once and takes 4 s, its files one by one take 10 s.
_GROUP_SIZE = 6

# The header of //tools/precompiled for each name of LibTorch in a target's deps. None is
# a target without any of these names.
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
    """Returns the attributes copts (`ours`, then `copts`) and deps of a target.

    Adds a precompiled header if `precompiled` is true, or None and possible. A target
    with copts of its own, or whose deps are a select(), then gets none. The header is
    chosen by LibTorch's name in `deps`.
    """
    headers = _FOR_TESTS if ours == _TEST_COPTS else _FOR_LIBRARIES
    libtorch = _libtorch(deps)
    if precompiled and not libtorch:
        libtorch = "@libtorch//:torch"
    header = headers[libtorch]
    if precompiled == None:
        precompiled = not copts and type(deps) == "list"
    if ours == _COPTS and _has_programs():
        ours = ours + ["-O1"]
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

def _grouped(name, srcs):
    """Returns (srcs, deps to add) for a test that compiles its files in groups.

    Several files *_test.cc of one test are included by generated files. So these files
    share a translation unit: two of one group cannot define the same name, not even in
    an unnamed namespace. The compiler reports the second definition.
    """
    tests = [file for file in srcs if file.endswith("_test.cc")]
    if len(tests) < 2:
        return srcs, []
    cc_library(
        name = name + "_files",
        testonly = True,
        textual_hdrs = tests,
        visibility = ["//visibility:private"],
    )
    groups = []
    for first in range(0, len(tests), _GROUP_SIZE):
        group = "%s_group_%d" % (name, first // _GROUP_SIZE)
        lines = [
            '#include \"%s/%s\"' % (native.package_name(), file)
            for file in tests[first:first + _GROUP_SIZE]
        ]
        native.genrule(
            name = group,
            outs = [group + ".cc"],
            cmd = "printf '%s\\n' " + " ".join(["'%s'" % line for line in lines]) + " > $@",
            visibility = ["//visibility:private"],
        )
        groups.append(group + ".cc")
    others = [file for file in srcs if file not in tests]
    return others + groups, [":" + name + "_files"]

def _as_one_unit(name, srcs):
    """Returns the sources of a library in which a generated file has the text of all .cc.

    It does not include them, since they would be headers then, and those who depend on the
    library would be compiled again after each change.
    """
    units = [file for file in srcs if file.endswith(".cc")]
    native.genrule(
        name = name + "_unit",
        srcs = units,
        outs = [name + "_unit.cc"],
        cmd = "for file in $(SRCS); do echo '#line 1 \"'$$file'\"'; cat $$file; done > $@",
        visibility = ["//visibility:private"],
    )
    return [file for file in srcs if file not in units] + [name + "_unit.cc"]

def gpipe_cc_library(name, one_unit = False, **kwargs):
    """cc_library with gpipe's options.

    Builds no shared library, so that a test is a single file that contains everything
    except LibTorch.

    Args:
      name: as in cc_library.
      one_unit: compiles all sources as one translation unit. LibTorch's headers take
        10 s with g++, most of the time of a file. So no two sources can define the same
        name, not even in an unnamed namespace. The compiler reports the second definition.
      **kwargs: as in cc_library. `srcs` and `hdrs` are [name].cc and [name].h, if there are
        such files, unless given. `copts` are added to gpipe's options. `precompiled` is
        whether LibTorch's headers are precompiled; the default is true if LibTorch is in
        `deps`. Set it for a target that gets LibTorch's headers through other deps.
    """
    if one_unit:
        kwargs["srcs"] = _as_one_unit(name, kwargs["srcs"])
    _library(_COPTS, name, linkstatic = True, **kwargs)

def gpipe_cc_test_library(name, **kwargs):
    """gpipe_cc_library that only tests use, compiled with their options (-O0).

    Args:
      name: as in gpipe_cc_library.
      **kwargs: as in gpipe_cc_library.
    """
    _library(_TEST_COPTS, name, linkstatic = True, testonly = True, **kwargs)

def _gtest_main(deps):
    """Returns [:gtest_main], or [] if `deps` names another part of GoogleTest."""
    others = [dep for dep in deps if dep.startswith("@com_google_googletest//")]
    return [] if others else ["@com_google_googletest//:gtest_main"]

def _library(ours, name, copts = [], deps = [], precompiled = None, **kwargs):
    kwargs.setdefault("srcs", native.glob([name + ".cc"], allow_empty = True))
    kwargs.setdefault("hdrs", native.glob([name + ".h"], allow_empty = True))
    kwargs.update(_attributes(ours, copts, deps, precompiled))
    cc_library(name = name, **kwargs)

def gpipe_cc_binary(name, copts = [], srcs = None, deps = [], precompiled = None, **kwargs):
    """cc_binary with gpipe's options.

    A binary with LibTorch in `deps` can use GPUs under --config=cuda. A program
    allocates by //gpipe/base:malloc; a rank that a test starts does not.

    Args:
      name: as in cc_binary.
      copts: added to gpipe's options.
      srcs: [name].cc unless given.
      deps: as in cc_binary.
      precompiled: as in gpipe_cc_library.
      **kwargs: as in cc_binary.
    """
    if _libtorch(deps):
        deps = deps + [_LIBTORCH_CUDA]
    if _has_programs():
        kwargs.setdefault("malloc", "//gpipe/base:malloc")
    kwargs.update(_attributes(_COPTS, copts, deps, precompiled))
    cc_binary(
        name = name,
        srcs = [name + ".cc"] if srcs == None else srcs,
        **kwargs
    )

def gpipe_cc_test(name, copts = [], srcs = None, deps = [], precompiled = None, **kwargs):
    """cc_test with gpipe's options and GoogleTest.

    Args:
      name: as in cc_test.
      copts: added to gpipe's options.
      srcs: [name].cc unless given.
      deps: as in cc_test. A label of @com_google_googletest in it replaces the
        default, :gtest_main. Use :gtest for a test with a main() of its own.
      precompiled: as in gpipe_cc_library.
      **kwargs: as in cc_test. `size` is "small", that is 60 s, unless given.
    """
    kwargs.setdefault("size", "small")
    deps = deps + _gtest_main(deps)
    srcs, extra = _grouped(name, [name + ".cc"] if srcs == None else srcs)
    kwargs.update(_attributes(_TEST_COPTS, copts, deps, precompiled))
    kwargs["deps"] = kwargs["deps"] + extra
    cc_test(name = name, srcs = srcs, linkstatic = True, **kwargs)

def gpipe_device_test(name, srcs = None, deps = [], size = "small"):
    """A test for each kind of device.

    The variants are [name]_cpu, [name]_simulated (four simulated accelerators) and
    [name]_cuda, which is skipped unless --config=cuda is given. [name] is a suite of
    all of them. The sources are compiled once. They get their devices from
    gpipe/testing/devices.h, whose implementation each variant links.

    Args:
      name: the common part of the variants' names.
      srcs: [name].cc unless given.
      deps: deps of the source, in addition to devices.h. A label of
        @com_google_googletest in it is as in gpipe_cc_test.
      size: as in cc_test.
    """
    srcs, extra = _grouped(name, [name + ".cc"] if srcs == None else srcs)
    main = _gtest_main(deps)
    _library(
        _TEST_COPTS,
        name + "_source",
        testonly = True,
        srcs = srcs,
        deps = deps + extra + ["//gpipe/testing:devices"] +
               (["@com_google_googletest//:gtest"] if main else []),
        alwayslink = True,
        visibility = ["//visibility:private"],
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
            tags = [variant],
            linkstatic = True,
            target_compatible_with = compatible_with,
            deps = [
                ":" + name + "_source",
                "//gpipe/testing:devices_" + variant,
            ] + main,
        )
    native.test_suite(
        name = name,
        tests = [":" + name + "_" + variant for variant in variants],
    )

def gpipe_sanitized_test(name, size = "small", **kwargs):
    """A second build of a test of this package, with sanitizers.

    Compiles everything that the test links a second time.

    Args:
      name: the name of the test with sanitizers.
      size: as in cc_test.
      **kwargs: as in any test. `test` is the label of the test without sanitizers,
        `sanitizers` are "address", "undefined", "thread".
    """
    sanitized_test(name = name, size = size, **kwargs)

def gpipe_fuzz_test(name, deps = [], runs = 100000, sanitized = True):
    """A fuzz target: a test that runs libFuzzer for a fixed number of inputs.

    [name].cc defines libFuzzer's LLVMFuzzerTestOneInput() and, optionally,
    LLVMFuzzerCustomMutator(). It checks its parser with gpipe/testing/fuzz_check.h.
    fuzz_corpus/x.* are the inputs to start from, for a name x_fuzz. [name].dict, which
    is optional, contains words of the format. Add each input that found a bug to the
    corpus.

    [name] is the test: the files of the corpus, and then inputs derived from them.
    tools/fuzz.sh runs the program of the test, [name]_libfuzzer, for longer. Both are
    skipped with a compiler that has no libFuzzer.

    Args:
      name: the source is [name].cc.
      deps: deps of the source, in addition to check.h.
      runs: the number of inputs of the test.
      sanitized: whether the test is built with ASan, UBSan and libFuzzer's coverage.
        Then everything that it links is compiled a second time. Otherwise it is built
        as other tests, and libFuzzer goes on with parsed inputs of new sizes only.
    """
    prefix = native.package_name() + "/" + name
    inputs = "fuzz_corpus/%s.*" % name[:-len("_fuzz")]
    files = native.glob([inputs], allow_empty = True)
    dictionary = native.glob([name + ".dict"], allow_empty = True)
    if not files:
        fail("%s needs files %s" % (name, inputs))

    # libFuzzer writes new inputs into a folder, but not beside single files.
    args = [
        "-runs=%d" % runs,
        "-seed=1",
        "-timeout=20",
        "-rss_limit_mb=4096",
        "-seed_inputs=" + ",".join([native.package_name() + "/" + file for file in files]),
    ] + ["-dict=" + prefix + ".dict" for _ in dictionary]
    compatible_with = select({
        "//gpipe/testing:libfuzzer": [],
        "//conditions:default": ["//gpipe/testing:unavailable"],
    })

    _library(
        _COPTS,
        name + "_target",
        testonly = True,
        srcs = [name + ".cc"],
        deps = deps + ["//gpipe/testing:fuzz_check"],
        alwayslink = True,
        visibility = ["//visibility:private"],
    )
    cc_test(
        name = name + "_libfuzzer",
        data = files + dictionary,
        linkopts = ["-fsanitize=fuzzer"],
        linkstatic = True,
        tags = ["manual"],
        target_compatible_with = compatible_with,
        deps = [":" + name + "_target"],
    )
    gpipe_sanitized_test(
        name = name,
        size = "medium",
        args = args,
        test = ":" + name + "_libfuzzer",
        sanitizers = ["address", "undefined", "fuzzer-no-link"] if sanitized else [],
        tags = ["fuzz"],
        target_compatible_with = compatible_with,
    )
