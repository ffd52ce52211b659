// What the actions of a schedule take: time, copies and memory.
#pragma once

#include <vector>

namespace gpipe {

// Lists have one entry per stage. All numbers are finite and >= 0.
struct Costs {
  // Seconds per micro-batch. A list may be empty if the schedule has no such
  // action.
  std::vector<double> forward, backward, backward_input, backward_weight,
      recompute;

  // Of what goes from a stage to the next one, and of its gradient, where the
  // two are on different ranks: seconds that each copy takes beside those that
  // `bandwidth` makes. Copies run beside what is computed.
  double latency = 0;
  // What a stage sends to the next one per micro-batch; its gradient is as
  // large. May be empty while the bandwidth is unlimited, and may end before
  // the last stage.
  std::vector<double> boundary_bytes;
  // Bytes per second of a link, that is of an ordered pair of ranks; 0 is
  // unlimited. The copies of a link go one after the other, in the order in
  // which they were made: each holds it for bytes / bandwidth, and is there
  // `latency` later.
  double bandwidth = 0;

  // Of a forward and a backward that are one block (Action::with_next), the
  // part of the shorter one that hides behind the longer one, 0 to 1: the block
  // takes f + b - overlap * min(f, b).
  double overlap = 0;

  // Bytes; an empty list is 0 for every stage. What an action needs only while
  // it runs is not counted.
  std::vector<double> resident_bytes;  // from beginning to end: parameters etc.
  // Per micro-batch, what a forward (or a recompute, if there is one) keeps for
  // the backward: from its start to the end of B, or of W.
  std::vector<double> activation_bytes;
  // Per micro-batch with a recompute, what its forward keeps instead: from its
  // start to the end of B, or of W.
  std::vector<double> input_bytes;
  // What is left of activation_bytes between the ends of I and W. Empty: all.
  std::vector<double> weight_activation_bytes;
};

// std::invalid_argument for a number that is negative, infinite or NaN, or an
// overlap above 1, with its place.
void check_costs(const Costs& costs);

}  // namespace gpipe
