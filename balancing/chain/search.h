// The search for the best cut of a chain. Internal to balancing. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/chain/paths.h"

namespace gpipe::balancing::detail {

// The numbers that determine the makespan of a cut: the sum of all times, and
// the largest time in the forward and in the backward pass.
struct Label {
  int64_t sum = 0, forward = 0, backward = 0;

  friend bool operator==(const Label&, const Label&) = default;
};

// Returns the labels of all cuts with the smallest makespan, each once. The
// list is empty if no cut respects the memory limits. With one micro-batch only
// the sum counts, so there is one label, whose largest times are kNone.
//
// Branch and bound over pairs of caps for the largest times. Given caps, the
// smallest sum is a shortest path. Each step computes one shortest path. It
// rules out either a part of the pairs, or all pairs whose largest times are
// not smaller than those of the path found. So the number of steps is at most
// the number of pairs of block times; usually it is some hundreds.
std::vector<Label> best_labels(const ChainPaths& paths);

}  // namespace gpipe::balancing::detail
