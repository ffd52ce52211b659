"""@cuda_toolkit: the CUDA Toolkit of this machine, or an empty stand-in.

Looked for in CUDA_HOME, CUDA_PATH and /usr/local/cuda. Its targets exist either
way, so that a BUILD file may name them; @cuda_toolkit//:defs.bzl has
CUDA_TOOLKIT_FOUND for those that must know. Only for what is CUDA's own (NVTX
ranges, the runtime's headers): the default build needs none of it.

NCCL's header is looked for in NCCL_HOME, in the wheel beside LIBTORCH
(nvidia/nccl), in the toolkit and in /usr/include.
"""

_BUILD = """# Written by cuda.bzl of gpipe.
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"], allow_empty = True),
    includes = ["include"],
)

# Header-only since version 3: include <nvtx3/nvToolsExt.h>.
cc_library(
    name = "nvtx",
    linkopts = ["-ldl"],
    deps = [":headers"],
)

# The header alone, if there is one: the library comes with LibTorch's CUDA half,
# whose process groups show the header's types.
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
    home = None
    for value in [ctx.os.environ.get(v, "") for v in ["CUDA_HOME", "CUDA_PATH"]] + ["/usr/local/cuda"]:
        if value and ctx.path(value + "/include/cuda_runtime_api.h").exists:
            home = value
            break
    nccl = None
    beside = [ctx.os.environ.get(v, "") for v in ["LIBTORCH", "TORCH_PATH"]]
    for folder in (
        [ctx.os.environ.get("NCCL_HOME", "") + "/include"] +
        [root + "/../nvidia/nccl/include" for root in beside if root] +
        [(home or "") + "/include", "/usr/include"]
    ):
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
        for part in ["lib64", "lib"]:
            if ctx.path(home + "/" + part + "/libcudart.so").exists:
                folder = home + "/" + part
                cudart = ["-L" + folder, "-Wl,-rpath," + folder, "-lcudart"]
                break
    else:
        # An `includes` of a folder that is absent would be an error.
        ctx.file("include/README", "No CUDA Toolkit was found.\n")
    ctx.file("BUILD", _BUILD.format(
        cudart = repr(cudart),
        nccl_defines = repr(["USE_C10D_NCCL"] if nccl else []),
    ))
    ctx.file("defs.bzl", "".join([
        '"""What @cuda_toolkit found."""\n\n',
        "CUDA_TOOLKIT_FOUND = {}\n".format(home != None),
        "CUDA_TOOLKIT_PATH = {}\n".format(repr(home or "")),
    ]))
    ctx.file("WORKSPACE", "workspace(name = \"{}\")\n".format(ctx.name))

cuda_toolkit_repository = repository_rule(
    implementation = _cuda_toolkit_repository_impl,
    environ = [
        "CUDA_HOME",
        "CUDA_PATH",
        "LIBTORCH",
        "NCCL_HOME",
        "TORCH_PATH",
    ],
)
