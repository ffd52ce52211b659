// The transport of tensors between the accelerators of two ranks.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace gpipe {

// The transport of tensors from the accelerator of one rank to that of another.
enum class Transfers {
  // The default: kTested if World::backend() names a backend for accelerators,
  // such as nccl, else kHost.
  kAuto,
  // Through the memory of the hosts.
  kHost,
  // From accelerator to accelerator: over NCCL between CUDA devices, in a
  // program that is built with --config=cuda and with nccl.h. Else the
  // constructor of a pipeline throws c10::ValueError. Each rank needs its own
  // device, unless NCCL is 2.31 or newer and NCCL_MULTI_RANK_GPU_ENABLE is 1.
  kDirect,
  // kDirect if all ranks can, and if a self-test of direct transfers passes
  // between each rank and the next one when a pipeline is made; else kHost. All
  // ranks decide alike. See DistributedPipelineImpl::transfers_reason().
  kTested,
};

// Returns "auto", "host", "direct" or "tested".
constexpr const char* to_string(Transfers transfers) {
  // In the order of Transfers.
  constexpr const char* kNames[] = {"auto", "host", "direct", "tested"};
  return kNames[static_cast<int>(transfers)];
}

// Returns the transfers with this name. Throws c10::ValueError, which lists all
// names, if there are none.
inline Transfers parse_transfers(const std::string& name) {
  for (const Transfers each : {Transfers::kAuto, Transfers::kHost,
                               Transfers::kDirect, Transfers::kTested}) {
    if (name == to_string(each)) return each;
  }
  C10_THROW_ERROR(
      ValueError,
      "transfers must be auto, host, direct or tested, not '" + name + "'");
}

}  // namespace gpipe
