// Cuts for schedules that no formula describes: a search that asks what a cut
// costs. No LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "balancing/chain.h"

namespace gpipe::balancing {

// What a cut costs, in any unit; infinity if it is not allowed.
using BalanceScore = std::function<double(const std::vector<int64_t>& balance)>;

// How long refine() may look.
struct RefineOptions {
  // Cuts to be scored at most, apart from those given; >= 0.
  int64_t score_calls = 2000;
};

// Layers per partition, of the best cut that a local search finds: never worse
// than any of those given, and the first of these if none is better.
//
// If there are no more cuts than score_calls, all are scored, and the result is
// exact. If there are more, each start is improved in turn until no move makes
// it better: neighbouring cuts go by 1, 2, 4, ... layers together, any number
// of them, or two go apart or towards each other. No cut is scored twice.
//
// `score` is called on this thread; equal scores give equal results.
//
// Errors: std::invalid_argument for no start, a start with an empty partition
// or none, starts with different numbers of partitions or layers, score_calls <
// 0, and a score that is NaN. What `score` throws is passed on. Complexity:
// score_calls and one call per start, each with O(p) besides, and O(p) of
// memory per call.
std::vector<int64_t> refine(const std::vector<std::vector<int64_t>>& starts,
                            const BalanceScore& score,
                            const RefineOptions& options = {});
std::vector<int64_t> refine(const std::vector<int64_t>& start,
                            const BalanceScore& score,
                            const RefineOptions& options = {});

// Seconds of one mini-batch, by what the partitions cost per micro-batch: for
// instance a simulation of a schedule.
using Makespan = std::function<double(const std::vector<StageCost>& stages)>;

// Layers per partition, of a cut with a small makespan that respects
// memory_bytes of every device: refine of what balance_cost (balancing/
// partition.h), balance_fill_drain (balancing/fill_drain.h) and balance_chain
// (balancing/chain.h) return for the chain. So it is never worse than any of
// these that respects the limits. Of chain.microbatches only those solvers
// know.
//
//   balance_by_makespan(chain, [&](const std::vector<StageCost>& stages) {
//     return makespan(stages, chain.microbatches);  // or any other schedule's
//   });
//
// Errors: those of balance_chain, InfeasibleError among them, and of refine.
std::vector<int64_t> balance_by_makespan(const Chain& chain,
                                         const Makespan& makespan,
                                         const RefineOptions& options = {});

}  // namespace gpipe::balancing
