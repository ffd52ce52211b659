// The place in the pipeline where an exception was thrown.
#pragma once

#include <cstdint>
#include <string>

namespace gpipe {

// The work on a micro-batch, or (last three) on a whole mini-batch.
enum class Phase {
  kForward,        // keeps its graph
  kCheckpointing,  // forward without keeping the graph
  kRecomputing,    // second forward of a checkpointed cell
  kBackward,
  kOffload,  // copy of what the backward needs to the host
  kReload,   // copy back
  // The next three run on the caller's thread.
  kScatter,    // split of the input, before the first partition
  kGather,     // concatenation of the outputs, after the last one
  kGradients,  // work on gradients before and after the backwards
};

// Returns "forward", "forward (checkpointed)", "recompute", "backward",
// "offload", "reload", "scatter", "gather" or "gradients".
const char* to_string(Phase phase);

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

}  // namespace gpipe
