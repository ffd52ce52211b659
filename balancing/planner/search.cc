#include "balancing/planner/search.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "balancing/partition.h"
#include "balancing/planner/cut.h"
#include "balancing/refine.h"

namespace gpipe::balancing::planner {
namespace {

// Times that differ by less count as equal: sums are rounded in different
// orders.
constexpr double kEqual = 1e-9;
// A smaller difference than this is no improvement.
constexpr double kBetter = 1e-12;
// How many families are improved by a local search.
constexpr std::size_t kImproved = 6;

using Family = std::tuple<bool, std::string, int64_t>;
Family family_of(const Candidate& candidate) {
  return {candidate.offload, candidate.schedule, candidate.stages_per_rank};
}

class Search {
 public:
  Search(const Problem& problem, const Effort& effort)
      : problem_(problem),
        effort_(effort),
        blocks_(planner::blocks_of(problem)) {
    for (Candidate& candidate : candidates(problem)) {
      Tried tried;
      tried.lower_bound =
          lower_bound(problem, candidate, blocks_[candidate.workload]);
      tried.seconds = tried.lower_bound;
      tried.candidate = std::move(candidate);
      tried_.push_back(std::move(tried));
    }
  }

  std::optional<Choice> run() {
    std::map<Family, std::vector<std::size_t>> families;
    for (std::size_t k = 0; k < tried_.size(); ++k) {
      families[family_of(tried_[k].candidate)].push_back(k);
    }
    for (auto& [family, members] : families) try_family(members);
    improve(families);
    return result(families);
  }

 private:
  const Blocks& blocks_of(const Tried& tried) const {
    return blocks_[tried.candidate.workload];
  }

  // Returns how many cuts of a candidate try_cuts() tries at most.
  int64_t most_cuts(const Evaluator& evaluator) const {
    return static_cast<int64_t>(
        std::min(static_cast<double>(effort_.all_cuts),
                 effort_.actions_per_candidate /
                     static_cast<double>(evaluator.actions())));
  }

  bool has_few_cuts(const Tried& tried, const Evaluator& evaluator,
                    int64_t most) const {
    return detail::has_few_cuts(blocks_of(tried).layers(),
                                std::ssize(evaluator.rank_of_stage()), most);
  }

  // Tries the members of a family, those with the smallest lower bounds first.
  void try_family(std::vector<std::size_t> members) {
    std::ranges::stable_sort(
        members, {}, [&](std::size_t k) { return tried_[k].lower_bound; });
    double best = kInfinity;
    for (const std::size_t k : members) {
      Tried& tried = tried_[k];
      if (tried.lower_bound > best * (1 + kEqual)) continue;
      try_cuts(tried, best);
      best = std::min(best, tried.seconds);
    }
  }

  // Finds the best cut of a candidate, or a good one if there are many.
  // `enough`: longer times than this need not be exact.
  void try_cuts(Tried& tried, double enough) {
    Evaluator evaluator(problem_, tried.candidate, blocks_of(tried));
    tried.simulated = true;
    tried.seconds = kInfinity;
    const std::vector<Balance> starts =
        starting_cuts(problem_, tried.candidate, blocks_of(tried), evaluator);
    for (const Balance& balance : starts) {
      take(tried, balance, evaluator.seconds(balance));
    }
    const int64_t most = most_cuts(evaluator);
    if (has_few_cuts(tried, evaluator, most)) {
      // refine() tries all of them.
      refine(starts[0],
             [&](const Balance& balance) {
               // Until a cut fits, times are exact, since a bound on the time
               // does not say whether a cut fits.
               double limit = tried.seconds;
               if (!std::isinf(limit)) {
                 limit = std::min(limit, enough * (1 + 2 * kEqual));
               }
               const double seconds = evaluator.seconds(balance, limit);
               if (seconds < limit) take(tried, balance, seconds);
               return seconds;
             },
             {most});
    }
    simulations_ += evaluator.simulations();
  }

  static void take(Tried& tried, const Balance& balance, double seconds) {
    if (!(seconds < tried.seconds * (1 - kBetter)) &&
        !(std::isinf(tried.seconds) && seconds < kInfinity)) {
      return;
    }
    tried.seconds = seconds;
    tried.balance = balance;
  }

  // Returns the best of `members`, the simplest among equals, or nullptr if
  // none fits.
  Tried* best_of(const std::vector<std::size_t>& members) {
    double least = kInfinity;
    for (const std::size_t k : members) {
      if (tried_[k].simulated) least = std::min(least, tried_[k].seconds);
    }
    for (const std::size_t k : members) {
      Tried& tried = tried_[k];
      if (tried.simulated && !std::isinf(tried.seconds) &&
          tried.seconds <= least * (1 + kEqual)) {
        return &tried;
      }
    }
    return nullptr;
  }

  // Improves the best candidates of the best families by a local search, if
  // not all of their cuts were tried.
  void improve(const std::map<Family, std::vector<std::size_t>>& families) {
    std::vector<Tried*> best;
    for (const auto& [family, members] : families) {
      Tried* const tried = best_of(members);
      if (tried) best.push_back(tried);
    }
    std::ranges::stable_sort(best, {}, &Tried::seconds);
    best.resize(std::min(best.size(), kImproved));
    const double share =
        effort_.actions_to_improve / static_cast<double>(kImproved);
    double least = kInfinity;
    for (Tried* const tried : best) {
      if (tried->lower_bound > least * (1 + kEqual)) continue;
      improve(*tried, share);
      least = std::min(least, tried->seconds);
    }
  }

  void improve(Tried& tried, double actions) {
    Evaluator evaluator(problem_, tried.candidate, blocks_of(tried));
    auto calls = static_cast<int64_t>(actions /
                                      static_cast<double>(evaluator.actions()));
    if (calls == 0 || has_few_cuts(tried, evaluator, most_cuts(evaluator))) {
      return;
    }
    // If refine() tries all cuts, one search is enough.
    const bool tries_all = has_few_cuts(tried, evaluator, calls);
    std::vector<Balance> starts = {tried.balance};
    if (!tries_all) {
      for (Balance& cut : cuts_by_pass(problem_, blocks_of(tried), evaluator)) {
        starts.push_back(std::move(cut));
      }
    }
    for (std::size_t k = 0; k < starts.size() && calls > 0; ++k) {
      refine(starts[k],
             [&](const Balance& balance) {
               // Cuts that are not simulated cost little, but count, too. Only
               // the search from the best cut needs no times of worse ones.
               --calls;
               const double seconds = evaluator.seconds(
                   balance, k == 0 ? tried.seconds : kInfinity);
               take(tried, balance, seconds);
               return seconds;
             },
             {calls});
    }
    simulations_ += evaluator.simulations();
  }

  std::optional<Choice> result(
      const std::map<Family, std::vector<std::size_t>>& families) {
    std::vector<std::size_t> all(tried_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    const Tried* const best = best_of(all);
    if (!best) return std::nullopt;
    Choice choice;
    choice.best = *best;
    for (const auto& [family, members] : families) {
      const Tried* const tried = best_of(members);
      if (tried) choice.families.push_back(*tried);
    }
    std::ranges::stable_sort(choice.families, {}, &Tried::seconds);
    Evaluator evaluator(problem_, best->candidate, blocks_of(*best));
    choice.prediction = evaluator.predict(best->balance);
    choice.tried = std::move(tried_);
    choice.simulations = simulations_;
    return choice;
  }

  const Problem& problem_;
  const Effort effort_;
  std::vector<Blocks> blocks_;  // by workload
  std::vector<Tried> tried_;    // in the order of candidates()
  int64_t simulations_ = 0;
};

}  // namespace

std::optional<Choice> choose(const Problem& problem, const Effort& effort) {
  return Search(problem, effort).run();
}

// ---- What a problem that does not fit would need

namespace {

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
LeastMemory need_of(const Problem& problem, const Candidate& candidate,
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
  LeastMemory need;
  need.bytes = least(
      [&](const Balance& balance) { return evaluator.largest_peak(balance); });
  need.factor = least(
      [&](const Balance& balance) { return evaluator.fullness(balance); });
  return need;
}

}  // namespace

LeastMemory least_memory(const Problem& problem, const Effort& effort) {
  const std::vector<Blocks> blocks = blocks_of(problem);
  // Candidates with offload count as those without: their peaks depend on
  // times.
  std::vector<std::pair<double, Candidate>> by_even_cut;
  LeastMemory need{kInfinity, kInfinity};
  for (const Candidate& candidate : candidates(problem)) {
    if (candidate.offload) continue;
    Evaluator evaluator(problem, candidate, blocks[candidate.workload]);
    const Balance even = balance_cost(layer_work(problem, candidate),
                                      std::ssize(evaluator.rank_of_stage()));
    by_even_cut.emplace_back(evaluator.largest_peak(even), candidate);
    need.bytes = std::min(need.bytes, by_even_cut.back().first);
    need.factor = std::min(need.factor, evaluator.fullness(even));
  }
  std::ranges::stable_sort(by_even_cut, {},
                           [](auto& each) { return each.first; });
  // The cuts of large problems are looked at for the leanest candidates only,
  // and those of the largest, such as 10,000 layers on 16 ranks, for none: they
  // would take minutes.
  const auto layers = static_cast<double>(blocks[0].layers());
  const double work =
      layers * layers * static_cast<double>(problem.ranks.size());
  const double most_work = 1e3 * static_cast<double>(effort.all_cuts);
  const auto most =
      work > 50 * most_work
          ? std::size_t{0}
          : static_cast<std::size_t>(std::max(8.0, most_work / work));
  for (std::size_t k = 0; k < std::min(most, by_even_cut.size()); ++k) {
    const Candidate& candidate = by_even_cut[k].second;
    const LeastMemory one =
        need_of(problem, candidate, blocks[candidate.workload]);
    need.bytes = std::min(need.bytes, one.bytes);
    need.factor = std::min(need.factor, one.factor);
  }
  return need;
}

}  // namespace gpipe::balancing::planner
