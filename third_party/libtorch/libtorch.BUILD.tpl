# Written by libtorch.bzl of gpipe.
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

exports_files([
    "root",
    "version.bzl",
])

# The folders of libtorch_cpu.so and of its dependencies, for linking and
# running. Quoted for linkopts.
_FOLDERS = %{folders}

_CUDA_FOLDERS = %{cuda_folders}

config_setting(
    name = "with_cuda",
    define_values = {"gpipe_cuda": "1"},
)

# For files that find LibTorch where they run (tools/install.sh): without paths of this
# machine.
config_setting(
    name = "without_paths",
    define_values = {"gpipe_pack": "1"},
)

# The same with CUDA (tools/pack.sh).
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
        # Leaves out protobuf 3.13 and pybind11. They would hide a project's
        # own, and the C++ frontend does not include them.
        exclude = [
            "include/google/**",
            "include/pybind11/**",
        ],
    ),
    # Makes LOG and CHECK those of glog, in either order of includes.
    defines = ["C10_USE_GLOG"],
    # As system includes, these headers give no warnings.
    includes = [
        "include",
        "include/torch/csrc/api/include",
    ],
    linkopts = [
        "-L" + %{lib},
        "-ltorch_cpu",
        "-lc10",
        # LibTorch's own OpenMP, by file name. The system's would be a second
        # one, with threads of its own.
        "-l:libgomp.so.1",
        # Sets DT_RPATH instead of DT_RUNPATH: only DT_RPATH is used for
        # indirect dependencies, such as libcudart.so.
        "-Wl,--disable-new-dtags",
    ] + ["-Wl,-rpath-link," + folder for folder in _FOLDERS] + select({
        ":without_paths": [],
        "//conditions:default": ["-Wl,-rpath," + folder for folder in _FOLDERS],
    }),
    deps = ["@com_github_google_glog//:glog"],
)

# The same library, for files that do not use torch/nn or torch/optim. gpipe.bzl
# gives these files a precompiled header that opens in a third of the time.
alias(
    name = "aten",
    actual = ":torch",
)

# LibTorch's CUDA part with --config=cuda, else the same as :torch. It registers
# itself when it is loaded and none of its symbols has to be used, so it needs
# --no-as-needed. This machine may lack libraries that only a GPU machine has
# (libcufile, ...), so their symbols are left to the loader.
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
