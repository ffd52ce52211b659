// What a rank holds at most while it runs its part of a schedule. No LibTorch.
#pragma once

#include <cstddef>
#include <vector>

#include "balancing/planner/stages.h"
#include "gpipe/schedule.h"

namespace gpipe::balancing::planner {

// The numbers of micro-batches that a rank holds at one time, for each of its
// stages in ascending order.
struct Held {
  std::vector<int> inputs;  // micro-batches whose input is held for a recompute
  std::vector<int> graphs;  // micro-batches that hold what backward needs
};

// Returns the moments of a rank at which it holds most, for any costs: those
// that no other moment exceeds in all numbers. `actions`: of the rank, without
// O and L. `stages`: those of the rank, ascending.
//
// The rule is that of with_memory() (gpipe/simulation/memory.h), where the
// whole graph is held to the end of W. Without O and L it does not depend on
// times, so the search for cuts needs no simulation to know the peak of each.
//
// Complexity: O(n k) for n actions, where k is the number of moments returned
// times the number of stages.
std::vector<Held> most_held(const std::vector<Action>& actions,
                            const std::vector<int>& stages);

// Returns the moments of one of the rank's stages, counted from 0, alone.
std::vector<Held> moments_of_stage(const std::vector<Held>& moments,
                                   std::size_t stage);

// Returns the peak in bytes of a rank with these `stages`: the resident bytes
// and the largest sum at any of the moments.
double peak_bytes(const std::vector<Held>& moments,
                  const std::vector<int>& stages, const StageTable& table);

// Returns the same for a rank whose only stage is `block`.
double peak_bytes(const std::vector<Held>& moments, const GrowingBlock& block);

}  // namespace gpipe::balancing::planner
