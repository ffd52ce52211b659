// Public: which way tensors take from the accelerator of one rank to that of
// another.
#pragma once

#include <string>

namespace gpipe {

enum class Transfers {
  // kHost. Direct transfers have never run on two GPUs and break rules of NCCL,
  // so a program gets them only if it asks for kDirect.
  kAuto,
  // By way of the memory of the hosts, through Gloo.
  kHost,
  // From accelerator to accelerator: through NCCL between CUDA devices, in a
  // program that is built with --config=cuda and with nccl.h. Without them a
  // pipeline throws c10::ValueError. Each rank needs a device of its own: NCCL
  // refuses two ranks on one.
  kDirect,
};

// "auto", "host", "direct".
constexpr const char* name_of(Transfers transfers) {
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

// The one of that name. c10::ValueError, naming all three, for another.
Transfers transfers_named(const std::string& name);

}  // namespace gpipe
