# Written by libtorch.bzl of gpipe.
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

exports_files([
    "root",
    "version.bzl",
])

# What libtorch_cpu.so and its needs are found in, at link and at run time.
_FOLDERS = %{folders}

_CUDA_FOLDERS = %{cuda_folders}

config_setting(
    name = "with_cuda",
    define_values = {"gpipe_cuda": "1"},
)

# Programs that go to another machine (tools/pack.sh) know no folder of this one.
config_setting(
    name = "packed",
    define_values = {
        "gpipe_cuda": "1",
        "gpipe_pack": "1",
    },
)

cc_library(
    name = "torch",
    hdrs = glob(
        ["include/**"],
        # protobuf 3.13 and pybind11: they would hide a project's own, and no
        # header of the C++ frontend asks for them.
        exclude = [
            "include/google/**",
            "include/pybind11/**",
        ],
    ),
    # LOG and CHECK are glog's, in whichever order the two are included.
    defines = ["C10_USE_GLOG"],
    # System includes: no warnings from these headers.
    includes = [
        "include",
        "include/torch/csrc/api/include",
    ],
    linkopts = [
        "-L" + %{lib},
        "-ltorch_cpu",
        "-lc10",
        # LibTorch's OpenMP, by file name: a second one from the system would
        # bring threads of its own.
        "-l:libgomp.so.1",
        # DT_RPATH and not DT_RUNPATH: only the former is looked at for the
        # needs of the libraries, which is where libcudart.so is asked for.
        "-Wl,--disable-new-dtags",
    ] + ["-Wl,-rpath-link," + folder for folder in _FOLDERS] + select({
        ":packed": [],
        "//conditions:default": ["-Wl,-rpath," + folder for folder in _FOLDERS],
    }),
    deps = ["@com_github_google_glog//:glog"],
)

# The same, for files without modules (torch/nn, torch/optim): gpipe.bzl gives them a
# precompiled header that opens in a third of the time.
alias(
    name = "aten",
    actual = ":torch",
)

# The CUDA half, linked under --config=cuda, else only :torch. It registers
# itself when it is loaded and no symbol of it need be used, hence no-as-needed.
# This machine may lack libraries that only a GPU machine has (libcufile ...), so
# their symbols are left to the loader.
cc_library(
    name = "cuda",
    defines = select({
        ":with_cuda": ["GPIPE_WITH_CUDA"],
        "//conditions:default": [],
    }),
    linkopts = select({
        ":with_cuda": [
            "-Wl,--push-state,--no-as-needed",
            "-ltorch_cuda",
            "-lc10_cuda",
            "-Wl,--pop-state",
            "-Wl,--allow-shlib-undefined",
        ] + ["-Wl,-rpath-link," + folder for folder in _CUDA_FOLDERS],
        "//conditions:default": [],
    }) + select({
        ":packed": [],
        ":with_cuda": ["-Wl,-rpath," + folder for folder in _CUDA_FOLDERS],
        "//conditions:default": [],
    }),
    deps = [":torch"] + select({
        ":with_cuda": ["@cuda_toolkit//:headers"],
        "//conditions:default": [],
    }),
)
