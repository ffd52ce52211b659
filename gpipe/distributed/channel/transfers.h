// Public: the transport of tensors between the accelerators of two ranks.
#pragma once

#include <string>

namespace gpipe {
// The transport of tensors from the accelerator of one rank to that of another.

enum class Transfers {
  // The default, which means kHost. Direct transfers have never run on two
  // GPUs, so a program gets them only if it asks for kDirect.
  kAuto,
  // Through the memory of the hosts.
  kHost,
  // From accelerator to accelerator: over NCCL between CUDA devices, in a
  // program that is built with --config=cuda and with nccl.h. Else the
  // constructor of a pipeline throws c10::ValueError. Each rank needs its own
  // device: NCCL refuses two ranks on one.
  kDirect,
};

// Returns "auto", "host" or "direct".
constexpr const char* to_string(Transfers transfers) {
  switch (transfers) {
    case Transfers::kAuto:
      return "auto";
    case Transfers::kHost:
      return "host";
    case Transfers::kDirect:
      return "direct";
  }
  return "?";
}

// Returns the transfers with this name. Throws c10::ValueError, which lists all
// three names, if there are none.
Transfers parse_transfers(const std::string& name);

}  // namespace gpipe
