"""For bzlmod: the repositories that are in no registry. For WORKSPACE see deps.bzl."""

load("//third_party:system.bzl", "system_repository")
load("//third_party/cuda:cuda.bzl", "cuda_toolkit_repository")
load("//third_party/libtorch:libtorch.bzl", "libtorch_repository")

def _machine_impl(_module_ctx):
    cuda_toolkit_repository(name = "cuda_toolkit")
    libtorch_repository(name = "libtorch")
    system_repository(name = "tcmalloc")

machine = module_extension(implementation = _machine_impl)
