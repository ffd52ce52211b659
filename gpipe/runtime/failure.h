// Where in the pipeline an exception came from.
#pragma once

#include <cstdint>
#include <string>

#include "gpipe/runtime/phase.h"

namespace gpipe {

// An exception keeps its type on its way to the caller, so the place is told
// beside it: GPipeImpl::last_failure(), and for a c10::Error in its text too.
struct Failure {
  // Of a partition or micro-batch: all of them.
  static constexpr int64_t kAll = -1;

  int64_t partition = 0;
  int64_t microbatch = 0;
  Phase phase = Phase::kForward;
  std::string layer;  // its name in the Sequential; empty if outside of one
  std::string what;   // the exception's text; empty if it has none

  // "partition 1, micro-batch 3, recompute, layer '5'"; "partition 0, all
  // micro-batches, scatter"
  std::string place() const;
  // The place and the text.
  std::string to_string() const;
};

// Where a mini-batch is that is no cell's.
Failure whole(int64_t partition, Phase phase);

// Called while an exception is being handled: `place` with its text. A
// c10::Error gets the place into its own text, too.
Failure caught_at(Failure place);

}  // namespace gpipe
