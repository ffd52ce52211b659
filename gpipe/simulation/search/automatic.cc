#include "gpipe/simulation/search/automatic.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/named.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/simulation/search/list.h"
#include "gpipe/simulation/search/memory.h"
#include "gpipe/simulation/search/order.h"
#include "gpipe/simulation/search/problem.h"
#include "gpipe/simulation/search/search.h"
#include "gpipe/simulation/simulate.h"
#include "gpipe/text/refuse.h"

namespace gpipe {
namespace internal {
namespace {

// The number of candidates from which the local search begins. After each round
// half of them remain, until one is left.
constexpr std::size_t kStarts = 16;

// A possible result.
struct Candidate {
  Order order;
  double makespan = 0;    // seconds
  std::string start;      // how its first order was made
  bool searched = false;  // whether local search has improved it
};

// Returns `schedule` with I and W instead of each B. W is right after I, or
// after the block of I.
Schedule in_parts(const Schedule& schedule) {
  Schedule result;
  for (const auto& actions : schedule.ranks) {
    auto& out = result.ranks.emplace_back();
    std::vector<Action> weights;
    for (Action action : actions) {
      if (action.kind == ActionKind::kBackward) {
        action.kind = ActionKind::kBackwardInput;
        weights.push_back(
            {action.stage, ActionKind::kBackwardWeight, action.microbatch});
      }
      out.push_back(action);
      if (action.fused_with_next) continue;
      out.insert(out.end(), weights.begin(), weights.end());
      weights.clear();
    }
  }
  return result;
}

// Returns `schedule` with B instead of each I, and without W.
Schedule in_one(const Schedule& schedule) {
  Schedule result = select(schedule, [](const Action& action) {
    return action.kind != ActionKind::kBackwardWeight;
  });
  for (auto& actions : result.ranks) {
    for (Action& action : actions) {
      if (action.kind == ActionKind::kBackwardInput)
        action.kind = ActionKind::kBackward;
    }
  }
  return result;
}

// The candidates that are within the memory limits.
class Candidates {
 public:
  explicit Candidates(const Problem& problem)
      : problem_(problem), unlimited_(problem), stopwatch_(problem) {
    unlimited_.limit.assign(unlimited_.limit.size(),
                            std::numeric_limits<double>::infinity());
  }

  // Adds the named schedules with this placement, and the schedules that exist
  // for any placement.
  void add_named() {
    const int v = problem_.stages / problem_.ranks;
    for (const std::string& name : schedule_names()) {
      const int needed = fixed_stages_per_rank(name).value_or(v);
      if (name == "forward-only" || v * problem_.ranks != problem_.stages ||
          needed != v) {
        continue;
      }
      const Schedule schedule =
          named_schedule(name, problem_.ranks, problem_.microbatches, v);
      if (rank_of_stage(schedule) == problem_.rank_of) add(schedule, name);
    }
    add(breadth_first(problem_.rank_of, problem_.microbatches),
        "breadth-first");
    const std::string leanest = "one micro-batch at a time";
    const Order order = one_at_a_time(problem_);
    add(order, leanest);
    if (!problem_.may_offload) return;
    const auto is_kept = [](const Action& action) {
      return action.kind != ActionKind::kRecompute;
    };
    add_offloaded(select(schedule_of(order, problem_), is_kept), leanest, {4});
  }

  // Adds the results of list scheduling with up to `most` rules. Returns the
  // number of rules that were tried. List scheduling does not know offload. So
  // if there may be some, it has no limits, and what it gives is offloaded.
  int add_listed(int most) {
    using Recompute = ListRule::Recompute;
    std::vector<Recompute> recomputes = {Recompute::kNever};
    if (problem_.may_recompute && problem_.is_limited &&
        !problem_.may_offload) {
      recomputes.push_back(Recompute::kIfFull);
      recomputes.push_back(Recompute::kAlways);
    }
    int count = 0;
    for (const bool splits : {true, false}) {
      if (splits && !problem_.may_split) continue;
      for (const Recompute recompute : recomputes) {
        for (const double spacing : {1., 0.75, 1.25, 0.5, 1.5, 2., 0., 1e3}) {
          for (const double filler : {1., 0.5, 0.}) {
            for (const bool waits : {false, true}) {
              if (count == most) return count;
              ++count;
              const auto order =
                  list_schedule(problem_.may_offload ? unlimited_ : problem_,
                                {spacing, filler, waits, splits, recompute});
              if (!order) continue;
              if (problem_.may_offload) {
                add_offloaded(schedule_of(*order, problem_), "list scheduling",
                              {2, 4});
              } else {
                add(*order, "list scheduling");
              }
            }
          }
        }
      }
    }
    return count;
  }

  // Adds an order that fits and can be run. Returns false if it does not fit.
  bool add(Order order, const std::string& start) {
    if (!fits(order, problem_)) return false;
    if (!stopwatch_.run(order, &times_)) return true;
    if (!fits(times_, problem_)) return false;
    candidates_.push_back({std::move(order), times_.makespan, start, false});
    return true;
  }

  // Returns up to `count` candidates, the shortest first, one for each
  // makespan. No candidate is left in this object.
  std::vector<Candidate> best(std::size_t count) {
    std::ranges::stable_sort(candidates_, {}, &Candidate::makespan);
    const auto last = std::unique(candidates_.begin(), candidates_.end(),
                                  [](const Candidate& a, const Candidate& b) {
                                    return a.makespan == b.makespan;
                                  });
    candidates_.erase(last, candidates_.end());
    candidates_.resize(std::min(count, candidates_.size()));
    return std::move(candidates_);
  }

 private:
  void add(const Schedule& schedule, const std::string& name) {
    if (has_kind(schedule, ActionKind::kBackwardWeight)) {
      if (problem_.may_split) add_recomputed(schedule, name);
      add_recomputed(in_one(schedule), name + " with whole backwards");
    } else {
      add_recomputed(schedule, name);
      if (problem_.may_split) {
        add_recomputed(in_parts(schedule), name + " with backwards in parts");
      }
    }
  }

  // Adds `schedule`. If it does not fit, adds it with recompute of the first
  // micro-batches, as few as necessary.
  void add_recomputed(const Schedule& schedule, const std::string& name) {
    if (add(order_of(schedule, problem_), name)) return;
    if (problem_.may_offload) add_offloaded(schedule, name, {1, 2, 3, 4});
    if (!problem_.may_recompute) return;
    for (const auto placement :
         {RecomputePlacement::kBeforeBackward, RecomputePlacement::kAhead}) {
      const auto made = [&](int count) {
        return order_of(
            with_recompute(
                schedule, [&](int i) { return i < count; }, placement),
            problem_);
      };
      int least = 1, most = problem_.microbatches;
      if (!fits(made(most), problem_)) continue;
      while (least < most) {
        const int middle = least + (most - least) / 2;
        if (fits(made(middle), problem_)) {
          most = middle;
        } else {
          least = middle + 1;
        }
      }
      add(made(most), name + " with recompute of " + std::to_string(most) +
                          (most == 1 ? " micro-batch" : " micro-batches"));
    }
  }

  // Adds `schedule` with offload on the ranks that hold too much, of as many
  // quarters of their micro-batches as listed. Micro-batches that are not
  // offloaded are kept, or recomputed.
  void add_offloaded(const Schedule& schedule, const std::string& name,
                     const std::vector<int>& quarters) {
    const Order plain = order_of(schedule, problem_);
    const auto distant = distant_cells(schedule, 1);
    std::vector<char> ranks_full;
    for (int r = 0; r < problem_.ranks; ++r) {
      const bool is_full = peak_bytes(plain, r, problem_) > problem_.limit[r];
      ranks_full.push_back(is_full ? 1 : 0);
    }
    const auto is_full = [&](int stage) {
      const int rank = problem_.rank_of[stage];
      return ranks_full[rank] != 0;
    };
    for (const int part : quarters) {
      const auto goes = [&](int stage, int i) {
        return is_full(stage) && i * part % 4 < part &&
               problem_.allows(CellMode::kOffload, stage) && distant(stage, i);
      };
      const auto comes_again = [&](int stage, int i) {
        return is_full(stage) && !goes(stage, i);
      };
      for (const bool recomputes : {false, true}) {
        if (recomputes && !problem_.may_recompute) continue;
        const Schedule before =
            recomputes ? with_recompute(schedule, comes_again) : schedule;
        for (const int ahead : {1, 0, 2}) {
          add(order_of(with_offload(before, goes, ahead), problem_),
              name + " with offload" + (recomputes ? " and recompute" : ""));
        }
      }
    }
  }

  const Problem& problem_;
  Problem unlimited_;  // without memory limits
  OrderSimulator stopwatch_;
  Times times_;
  std::vector<Candidate> candidates_;
};

// Throws if a rank cannot run even the leanest order without offload within its
// limit. Otherwise that order fits, so there is at least one candidate.
// `has_tried_offload`: whether a search with offload has found nothing.
void check_memory(const Problem& problem, bool has_tried_offload) {
  const Order leanest = one_at_a_time(problem);
  for (int r = 0; r < problem.ranks; ++r) {
    const double limit = problem.limit[r];
    const double least = peak_bytes(leanest, r, problem);
    if (least <= limit) continue;
    refuse("rank ", r, " may hold ", limit, " bytes, and needs ", least,
           " at least, for its parameters and one micro-batch",
           has_tried_offload ? "; no schedule with offload was found that fits"
                             : "",
           ": give it more memory, fewer layers, or smaller micro-batches",
           problem.may_recompute ? "" : "; or allow recompute");
  }
}

// Returns the best result of local search from `candidates`. The search begins
// from all of them, then continues from the better half of the results, and so
// on: successive halving (Jamieson and Talwalkar, "Non-stochastic best arm
// identification and hyperparameter optimization", 2016). Each round has the
// same part of the budget.
Candidate best_of(const Problem& problem, std::vector<Candidate> candidates,
                  int budget, uint64_t seed) {
  int rounds = 1;
  for (std::size_t k = candidates.size(); k > 1; k = (k + 1) / 2) ++rounds;
  OrderSimulator stopwatch(problem);
  Times times;
  for (int round = 0; round < rounds; ++round) {
    const int share = budget / rounds / static_cast<int>(candidates.size());
    for (Candidate& candidate : candidates) {
      Order order = improved(problem, candidate.order, share, seed++);
      stopwatch.run(order, &times);
      if (times.makespan >= candidate.makespan) continue;
      candidate = {std::move(order), times.makespan, candidate.start, true};
    }
    std::ranges::stable_sort(candidates, {}, &Candidate::makespan);
    candidates.resize((candidates.size() + 1) / 2);
  }
  return candidates.front();
}

// Returns the best result for `problem`; nullopt if none fits. `known`: a
// result that fits, if there is one. The result is not longer.
std::optional<Candidate> search(const Problem& problem,
                                const AutomaticOptions& options,
                                std::optional<Candidate> known) {
  Candidates candidates(problem);
  candidates.add_named();
  const int budget = options.budget - candidates.add_listed(options.budget);
  if (known) candidates.add(known->order, known->start);
  std::vector<Candidate> starts = candidates.best(kStarts);
  if (starts.empty()) return known;
  Candidate found = best_of(problem, std::move(starts), budget, options.seed);
  if (known && known->makespan <= found.makespan) return known;
  return found;
}

}  // namespace
}  // namespace internal

AutomaticSchedule automatic_schedule(const std::vector<int>& rank_of_stage,
                                     int microbatches, const Costs& costs,
                                     const AutomaticOptions& options) {
  internal::Problem problem(rank_of_stage, microbatches, costs, options);
  const bool may_offload = std::exchange(problem.may_offload, false);
  if (!may_offload) internal::check_memory(problem, false);
  auto best = internal::search(problem, options, std::nullopt);
  if (may_offload && !(best && best->makespan <= problem.lower_bound())) {
    problem.may_offload = true;
    best = internal::search(problem, options, std::move(best));
  }
  if (!best) internal::check_memory(problem, true);

  AutomaticSchedule result;
  result.schedule = internal::schedule_of(best->order, problem);
  validate(result.schedule);
  result.timeline = simulate(result.schedule, problem.costs);
  result.origin = best->start + (best->searched ? ", local search" : "");
  result.lower_bound = problem.lower_bound();
  return result;
}

}  // namespace gpipe
