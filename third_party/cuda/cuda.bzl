"""@cuda_toolkit: the CUDA Toolkit of this machine, or an empty stand-in.

This looks for the toolkit in CUDA_HOME, CUDA_PATH and /usr/local/cuda, then in
the wheels that pip installs beside @libtorch's torch (nvidia/cu13); those also need
nvidia-cuda-crt. The targets exist in any case, so BUILD files may always name
them. @cuda_toolkit//:defs.bzl has CUDA_TOOLKIT_FOUND, and NCCL_MISSING, which
names the headers that are missing for NCCL. The toolkit is used only for parts
that are specific to CUDA (NVTX ranges, the runtime's headers). The default
build needs none of it.

It looks for NCCL's header in NCCL_HOME, in the wheel beside @libtorch's torch
(nvidia/nccl), in the toolkit and in /usr/include.
"""

load("//third_party/libtorch:libtorch.bzl", "linkopt_path")

_BUILD = """# Written by cuda.bzl of gpipe.
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"], allow_empty = True),
    includes = ["include"],
)

# Has headers only since version 3: include <nvtx3/nvToolsExt.h>.
cc_library(
    name = "nvtx",
    linkopts = ["-ldl"],
    deps = [":headers"],
)

# The header only, if it exists. The library comes with LibTorch's CUDA part,
# whose process groups use the header's types.
cc_library(
    name = "nccl",
    hdrs = glob(["nccl/*"], allow_empty = True),
    defines = {nccl_defines},
    includes = ["nccl"],
    deps = [":headers"],
)

cc_library(
    name = "cudart",
    linkopts = {cudart},
    deps = [":headers"],
)
"""

def _cuda_toolkit_repository_impl(ctx):
    # The folder beside the torch folder that @libtorch has found.
    beside = ctx.read(ctx.path(ctx.attr.libtorch_root)).strip() + "/../nvidia/"
    home = None
    for folder in [
        ctx.os.environ.get("CUDA_HOME", ""),
        ctx.os.environ.get("CUDA_PATH", ""),
        "/usr/local/cuda",
        beside + "cu13",
    ]:
        if folder and ctx.path(folder + "/include/crt/host_defines.h").exists:
            home = folder
            break
    nccl = None
    for folder in [
        ctx.os.environ.get("NCCL_HOME", "") + "/include",
        beside + "nccl/include",
        (home or "") + "/include",
        "/usr/include",
    ]:
        if ctx.path(folder + "/nccl.h").exists:
            nccl = folder + "/nccl.h"
            break
    if nccl:
        ctx.symlink(nccl, "nccl/nccl.h")
    else:
        ctx.file("nccl/README", "No nccl.h was found.\n")
    cudart = []
    if home:
        ctx.symlink(home + "/include", "include")
        for folder in [home + "/lib64", home + "/lib"]:
            # A wheel has no libcudart.so, only the versioned name.
            for name in ["libcudart.so", "libcudart.so.13"]:
                if not cudart and ctx.path(folder + "/" + name).exists:
                    quoted = linkopt_path(folder)
                    cudart = ["-L" + quoted, "-Wl,-rpath," + quoted, "-l:" + name]
    else:
        # The folder must exist: `includes` of a missing folder is an error.
        ctx.file("include/README", "No CUDA Toolkit was found.\n")
    missing = ""
    if not home:
        missing = ("the headers of CUDA (set CUDA_HOME to a CUDA Toolkit, or install " +
                   "nvidia-cuda-crt by pip, in the version of nvidia-cuda-runtime there)")
    elif not nccl:
        missing = "nccl.h (set NCCL_HOME, or install nvidia-nccl-cu13 by pip)"
    ctx.file("BUILD", _BUILD.format(
        cudart = repr(cudart),
        nccl_defines = repr([] if missing else ["USE_C10D_NCCL"]),
    ))
    ctx.file("defs.bzl", "".join([
        '"""What @cuda_toolkit found."""\n\n',
        "CUDA_TOOLKIT_FOUND = {}\n".format(home != None),
        "CUDA_TOOLKIT_PATH = {}\n".format(repr(home or "")),
        "NCCL_MISSING = {}\n".format(repr(missing)),
    ]))
    ctx.file("WORKSPACE", "workspace(name = \"{}\")\n".format(ctx.name))

cuda_toolkit_repository = repository_rule(
    implementation = _cuda_toolkit_repository_impl,
    environ = [
        "CUDA_HOME",
        "CUDA_PATH",
        "NCCL_HOME",
    ],
    attrs = {
        "libtorch_root": attr.label(
            allow_single_file = True,
            default = "@libtorch//:root",
            doc = "names the torch folder",
        ),
    },
)

def _nccl_notice_impl(ctx):
    if ctx.attr.missing:
        # buildifier: disable=print
        print("this build has no direct transfers (Transfers::kDirect), which need " +
              ctx.attr.missing)
    return [CcInfo()]

nccl_notice = rule(
    implementation = _nccl_notice_impl,
    attrs = {
        "missing": attr.string(mandatory = True, doc = "NCCL_MISSING of @cuda_toolkit"),
    },
    doc = "A dependency that prints a line if the build cannot use NCCL.",
    provides = [CcInfo],
)
