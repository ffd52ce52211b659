// The search for the best cut of a chain. Internal to balancing. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/chain_paths.h"

namespace gpipe::balancing::detail {

// What makes the makespan of a cut: the sum of all times, and the largest in
// the forward and in the backward pass.
struct Label {
  int64_t sum = 0, forward = 0, backward = 0;

  friend bool operator==(const Label& a, const Label& b) {
    return a.sum == b.sum && a.forward == b.forward && a.backward == b.backward;
  }
};

// The labels of all cuts with the least makespan, each once; none if no cut
// respects the memory limits. With one micro-batch, for which only the sum
// counts, it is one label of which the largest times are kNone.
//
// Branch and bound over pairs of caps for the largest times: with caps, the
// least sum is a shortest path. Each step costs one, and rules out either a
// part of the pairs, or all that have largest times no smaller than those of
// the path found. So in theory there are at most as many steps as pairs of
// times of blocks. Some hundreds are usual.
std::vector<Label> best_labels(const ChainPaths& paths);

}  // namespace gpipe::balancing::detail
