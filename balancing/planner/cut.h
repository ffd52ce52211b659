// Cuts from which the planner starts. No LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "balancing/planner/evaluate.h"
#include "balancing/planner/stages.h"

namespace gpipe::balancing::planner {

// How many cuts are looked at to find the one that takes least memory, with
// several stages per rank or offload.
constexpr int64_t kLeanestCuts = 300;

// One stage of a cut that is to be found.
struct StageLimit {
  double speed = 1;
  // The most bytes of its block: resident bytes, plus the largest of the
  // moments in one of the `ways` to run it. They are those of a rank whose only
  // stage this is.
  double bytes = kInfinity;
  std::vector<std::vector<Held>> ways;
};

// Returns a cut with the smallest possible largest time of a stage (its `work`
// divided by its speed) in which no stage has more than its bytes, or nullopt
// if there is none. The times are minimal up to a relative error of 1e-9, or
// 1e-4 if layers times stages are above 20,000. Among such cuts, each stage in
// turn gets about its share of the rest.
//
// `work`: seconds per layer at speed 1.
// Complexity: O(n s) for n layers and s stages, about 40 times. With limits,
// O(n b) more per stage for blocks of b layers that fit.
std::optional<Balance> bottleneck_cut(const Blocks& blocks,
                                      const std::vector<double>& work,
                                      const std::vector<StageLimit>& stages);

// Returns the cuts from which a search for the best cut of `candidate` starts:
// the most even one and, if that one exceeds the memory limits, one within
// them. The list is not empty, but it may be that none fits.
std::vector<Balance> starting_cuts(const Problem& problem,
                                   const Candidate& candidate,
                                   const Blocks& blocks, Evaluator& evaluator);

// Returns the cut with the most even forwards and the one with the most even
// backwards, without regard to memory. A local search from them often ends at
// another cut than one from starting_cuts().
std::vector<Balance> cuts_by_pass(const Problem& problem, const Blocks& blocks,
                                  const Evaluator& evaluator);

}  // namespace gpipe::balancing::planner
