// Checkpoint modes.
#pragma once

#include <cstdint>

namespace gpipe {

// Which micro-batches keep only what came into their cells between forward and
// backward, and are computed again (recomputed) just before their backward.
// Less memory for about one more forward of time. Only in training mode and
// with gradients enabled.
enum class Checkpoint {
  kAlways,      // every micro-batch
  kExceptLast,  // all but the last, whose backward comes first anyway
  kNever,       // none
};

// "always", "except_last", "never": as torchgpipe calls them.
inline const char* name_of(Checkpoint mode) {
  switch (mode) {
    case Checkpoint::kAlways:
      return "always";
    case Checkpoint::kExceptLast:
      return "except_last";
    case Checkpoint::kNever:
      return "never";
  }
  return "unknown";
}

// How many of `microbatches`, from the first, are checkpointed.
inline int64_t checkpointed_microbatches(Checkpoint mode,
                                         int64_t microbatches) {
  switch (mode) {
    case Checkpoint::kAlways:
      return microbatches;
    case Checkpoint::kExceptLast:
      return microbatches - 1;
    case Checkpoint::kNever:
      return 0;
  }
  return 0;
}

}  // namespace gpipe
