// A pipeline schedule as data: what every rank does, in which order.
// No LibTorch.
#pragma once

#include <string>
#include <vector>

namespace gpipe {

// What is done with a micro-batch: forward; backward as a whole, or its input
// and weight parts; recompute of a checkpointed forward.
enum class Kind {
  kForward,         // F
  kBackward,        // B
  kBackwardInput,   // I
  kBackwardWeight,  // W
  kRecompute,       // R
};

// One entry of a schedule.
struct Action {
  int stage = 0;
  Kind kind = Kind::kForward;
  int microbatch = 0;

  // Makes one block with the next action of its rank: neither begins before
  // what both need from others is there. A forward with a backward: DualPipe's
  // overlapped pair. A recompute with its backward: a late recompute, which
  // waits for the gradient.
  bool with_next = false;

  friend bool operator==(const Action& a, const Action& b) {
    return a.stage == b.stage && a.kind == b.kind &&
           a.microbatch == b.microbatch && a.with_next == b.with_next;
  }
};

// "2F0" is stage 2, forward, micro-batch 0: the notation of
// torch.distributed.pipelining.
std::string to_string(const Action& action);

// ranks[r] are the actions of rank r, one after the other. An action waits
// for those that it needs, so two ranks meet only through these.
struct Schedule {
  std::vector<std::vector<Action>> ranks;
};

}  // namespace gpipe
