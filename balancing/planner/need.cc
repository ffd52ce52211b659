// least_memory(): what a problem that does not fit would need.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "balancing/partition.h"
#include "balancing/planner/bound.h"
#include "balancing/planner/cut.h"
#include "balancing/planner/search.h"
#include "balancing/refine.h"

namespace gpipe::balancing::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns the smallest number f with f * limit >= bytes in double arithmetic;
// infinity if there is none.
double factor_for(double bytes, double limit) {
  if (bytes <= 0 || std::isinf(limit)) return 0;
  if (limit == 0) return kInfinity;
  double factor = bytes / limit;
  while (factor * limit < bytes) factor = std::nextafter(factor, kInfinity);
  for (;;) {
    const double less = std::nextafter(factor, 0.0);
    if (less * limit < bytes) return factor;
    factor = less;
  }
}

// Returns the minimum, over all cuts of `layers` into `partitions`, of the
// largest demand of a block. `begin(j, first)`: returns the empty block of
// partition j at layer `first`, with extend() and last(). `demand(j, block)`:
// must not decrease as the block grows.
// Complexity: O(p n^2) calls.
template <typename Begin, typename Demand>
double least_largest(int64_t layers, int64_t partitions, const Begin& begin,
                     const Demand& demand) {
  std::vector<double> least(layers + 1, kInfinity);  // by cut
  least[0] = 0;
  for (int64_t j = 0; j < partitions; ++j) {
    std::vector<double> next(layers + 1, kInfinity);
    const int64_t latest = layers - (partitions - j - 1);
    for (int64_t first = j; first < latest; ++first) {
      if (std::isinf(least[first])) continue;
      for (auto block = begin(j, first); block.last() < latest;) {
        block.extend();
        double& there = next[block.last()];
        there = std::min(there, std::max(least[first], demand(j, block)));
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
  if (candidate.stages_per_rank == 1) {
    const bool where_needed = candidate.recompute == kWhereNeeded;
    const auto least = [&](const auto& demand) {
      return least_largest(
          blocks.layers(), std::ssize(problem.ranks),
          [&](int64_t, int64_t first) { return GrowingBlock(blocks, first); },
          [&](int64_t r, const GrowingBlock& block) {
            const int rank = static_cast<int>(r);
            double bytes = peak_bytes(evaluator.held(rank, false), block);
            if (where_needed) {
              bytes = std::min(bytes,
                               peak_bytes(evaluator.held(rank, true), block));
            }
            return demand(r, bytes);
          });
    };
    return {least([](int64_t, double bytes) { return bytes; }),
            least([&](int64_t rank, double bytes) {
              return factor_for(bytes, problem.ranks[rank].memory_bytes);
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
  const std::vector<Blocks> blocks = blocks_of(problem);
  // Candidates with offload count as those without: their peaks depend on
  // times.
  std::vector<std::pair<double, Candidate>> by_even_cut;
  for (const Candidate& candidate : candidates(problem)) {
    if (candidate.offload) continue;
    Evaluator evaluator(problem, candidate, blocks[candidate.workload]);
    const Balance even = balance_cost(layer_work(problem, candidate),
                                      std::ssize(evaluator.rank_of_stage()));
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
