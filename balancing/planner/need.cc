// least_memory(): what a problem that does not fit would need.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "balancing/chain/refine.h"
#include "balancing/planner/bound.h"
#include "balancing/planner/cut.h"
#include "balancing/planner/search.h"
#include "balancing/solver/partition.h"

namespace gpipe::balancing::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns the smallest factor f with f * limit >= bytes in double arithmetic.
double factor_for(double bytes, double limit) {
  if (bytes <= 0 || std::isinf(limit)) return 0;
  if (limit == 0) return kInfinity;
  double factor = bytes / limit;
  while (factor * limit < bytes) factor = std::nextafter(factor, kInfinity);
  return factor;
}

// A number that grows with the bytes that a rank needs.
using Demand = std::function<double(int rank, double bytes)>;

// Returns the minimum over all cuts into one stage per rank of the largest
// demand.
double least_largest(const Problem& problem, const Blocks& blocks,
                     Evaluator& evaluator, const Demand& demand) {
  const int64_t layers = blocks.layers();
  std::vector<double> least(static_cast<std::size_t>(layers) + 1, kInfinity);
  least[0] = 0;
  const auto ranks = static_cast<int>(problem.ranks.size());
  for (int r = 0; r < ranks; ++r) {
    std::vector<double> next(least.size(), kInfinity);
    const std::vector<Held>& moments = evaluator.least_held(r);
    for (int64_t first = 0; first < layers; ++first) {
      if (std::isinf(least[first])) continue;
      GrowingBlock block(blocks, first);
      while (block.last() < layers - (ranks - 1 - r)) {
        block.extend();
        next[block.last()] = std::min(
            next[block.last()],
            std::max(least[first], demand(r, peak_bytes(moments, block))));
      }
    }
    least = std::move(next);
  }
  return least[layers];
}

// Returns what one candidate needs.
Need need_of(const Problem& problem, const Candidate& candidate,
             const Blocks& blocks) {
  Evaluator evaluator(problem, candidate, blocks);
  const auto limit_of = [&](int rank) {
    return problem.ranks[static_cast<std::size_t>(rank)].memory_bytes;
  };
  if (candidate.stages_per_rank == 1) {
    return {
        least_largest(problem, blocks, evaluator,
                      [](int, double bytes) { return bytes; }),
        least_largest(problem, blocks, evaluator, [&](int rank, double bytes) {
          return factor_for(bytes, limit_of(rank));
        })};
  }
  const Balance start = starting_cuts(problem, candidate, blocks, evaluator)[0];
  const auto least = [&](const auto& measure) {
    return measure(refine(start, measure, {kLeanestCuts}));
  };
  Need need;
  need.bytes = least(
      [&](const Balance& balance) { return evaluator.largest_peak(balance); });
  need.factor = least(
      [&](const Balance& balance) { return evaluator.fullness(balance); });
  return need;
}

}  // namespace

Need least_memory(const Problem& problem, const Effort& effort) {
  check(problem);
  const std::vector<Blocks> blocks = blocks_of(problem);
  // Candidates with offload count as those without: their peaks depend on
  // times.
  std::vector<std::pair<double, Candidate>> by_even_cut;
  for (const Candidate& candidate : candidates(problem)) {
    if (candidate.offload) continue;
    Evaluator evaluator(problem, candidate, blocks[candidate.workload]);
    const Balance even =
        balance_cost(layer_work(problem, candidate),
                     static_cast<int64_t>(evaluator.rank_of_stage().size()));
    by_even_cut.emplace_back(evaluator.largest_peak(even), candidate);
  }
  std::ranges::stable_sort(by_even_cut, {},
                           [](auto& each) { return each.first; });
  // The cuts of large problems are looked at for the leanest candidates only.
  const auto layers = static_cast<double>(blocks[0].layers());
  const double work =
      layers * layers * static_cast<double>(problem.ranks.size());
  const auto most = static_cast<std::size_t>(
      std::max(8.0, 1e3 * static_cast<double>(effort.all_cuts) / work));
  Need need{kInfinity, kInfinity};
  for (std::size_t k = 0; k < std::min(most, by_even_cut.size()); ++k) {
    const Candidate& candidate = by_even_cut[k].second;
    const Need one = need_of(problem, candidate, blocks[candidate.workload]);
    need.bytes = std::min(need.bytes, one.bytes);
    need.factor = std::min(need.factor, one.factor);
  }
  return need;
}

}  // namespace gpipe::balancing::planner
