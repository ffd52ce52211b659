// Checkpoint modes.
#pragma once

#include <cstdint>

namespace gpipe {

// Which micro-batches are checkpointed: between forward and backward their
// cells keep only their inputs, and run the forward again (recompute) just
// before the backward. This saves memory and costs about one more forward. It
// applies only in training mode and with gradients enabled.
enum class Checkpoint {
  kAlways,      // every micro-batch
  kExceptLast,  // all but the last, whose backward comes first anyway
  kNever,       // none
};

// Returns the name as in torchgpipe: "always", "except_last" or "never".
inline const char* to_string(Checkpoint mode) {
  // In the order of Checkpoint.
  constexpr const char* kNames[] = {"always", "except_last", "never"};
  return kNames[static_cast<int>(mode)];
}

// Returns how many of `microbatches` are checkpointed. These are the first
// ones.
inline int64_t checkpointed_microbatches(Checkpoint mode,
                                         int64_t microbatches) {
  if (mode == Checkpoint::kNever) return 0;
  return mode == Checkpoint::kAlways ? microbatches : microbatches - 1;
}

}  // namespace gpipe
