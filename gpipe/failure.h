// The place in the pipeline where an exception was thrown.
#pragma once

#include <cstdint>
#include <string>

#include "gpipe/phase.h"

namespace gpipe {

// The place and the text of an exception. The exception itself reaches the
// caller with its type unchanged. GPipeImpl::last_failure() returns the
// Failure. A c10::Error also has the place in its text.
struct Failure {
  // As `partition` or `microbatch`: all of them.
  static constexpr int64_t kAll = -1;

  int64_t partition = 0;
  int64_t microbatch = 0;
  Phase phase = Phase::kForward;
  std::string layer;  // name in the Sequential; empty if not in a layer
  std::string what;   // text of the exception; empty if it has none

  // Returns the place as text, such as "partition 1, micro-batch 3, recompute,
  // layer '5'" or "partition 0, all micro-batches, scatter".
  std::string place() const;
  // Returns the place, followed by the exception's text if there is one.
  std::string to_string() const;
};

// Returns the place of work on a whole mini-batch, which belongs to no cell.
Failure at_partition(int64_t partition, Phase phase);

// Returns `place` with the text of the exception that is being handled. If that
// is a c10::Error, adds the place to its text. Call inside a catch block.
Failure caught_at(Failure place);

}  // namespace gpipe
