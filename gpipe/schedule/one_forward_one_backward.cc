#include "gpipe/schedule/one_forward_one_backward.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "gpipe/base/text.h"

namespace gpipe {
namespace {

// ---- The common part of the family
//
// A rank begins with some forwards (warm-up), then alternates one forward and
// one backward (steady state), and ends with the remaining backwards (drain).

// The stages of each rank, and the order of their forwards and backwards.
//
// Rank r has the stages r, r + ranks, r + 2 ranks, ... It takes micro-batches
// in groups of `group`. Forwards: one group on the rank's first stage, the same
// group on its next stage, and so on; then the next group. The last group may
// be smaller. Backwards: the same groups, from the rank's last stage to its
// first.
struct Loop {
  int ranks = 1;
  int microbatches = 1;
  int stages_per_rank = 1;
  int group = 1;
};

// A function that returns a number for each rank.
using PerRank = std::function<int(int rank)>;

// Returns all actions of `kind` of a rank, in the order of Loop.
std::vector<Action> all(const Loop& loop, int rank, ActionKind kind) {
  std::vector<Action> actions;
  for (int first = 0; first < loop.microbatches; first += loop.group) {
    const int last = std::min(first + loop.group, loop.microbatches);
    for (int k = 0; k < loop.stages_per_rank; ++k) {
      const int chunk =
          kind == ActionKind::kForward ? k : loop.stages_per_rank - 1 - k;
      for (int i = first; i < last; ++i) {
        actions.push_back({chunk * loop.ranks + rank, kind, i});
      }
    }
  }
  return actions;
}

// Returns the actions of one rank. The next W of `weights` follows each
// backward, except the first `lag` ones.
std::vector<Action> row(const std::vector<Action>& forwards,
                        const std::vector<Action>& backwards,
                        const std::vector<Action>& weights, int warm_up,
                        int lag) {
  std::vector<Action> actions;
  auto forward = forwards.begin();
  auto weight = weights.begin();
  while (warm_up-- > 0 && forward != forwards.end()) {
    actions.push_back(*forward++);
  }
  for (const Action& backward : backwards) {
    if (forward != forwards.end()) actions.push_back(*forward++);
    actions.push_back(backward);
    if (lag-- <= 0 && weight != weights.end()) actions.push_back(*weight++);
  }
  actions.insert(actions.end(), weight, weights.end());
  return actions;
}

// Returns a schedule in which rank r runs `warm_up(r)` forwards (or all of its
// forwards, if there are fewer), then pairs of a forward and a B, then the
// remaining Bs. With `lag` there are I instead of B: on rank r the oldest
// pending W follows each I, except the first `lag(r)` ones. The remaining Ws
// come last.
Schedule alternate(const Loop& loop, const PerRank& warm_up,
                   const PerRank& lag = nullptr) {
  Schedule schedule;
  for (int rank = 0; rank < loop.ranks; ++rank) {
    const auto of_kind = [&](ActionKind kind) { return all(loop, rank, kind); };
    const auto forwards = of_kind(ActionKind::kForward);
    schedule.ranks.push_back(lag ? row(forwards,
                                       of_kind(ActionKind::kBackwardInput),
                                       of_kind(ActionKind::kBackwardWeight),
                                       warm_up(rank), lag(rank))
                                 : row(forwards, of_kind(ActionKind::kBackward),
                                       {}, warm_up(rank), 0));
  }
  return schedule;
}

// Returns whether each group, including the last one, has at least `ranks`
// micro-batches, or is the only one.
bool fits(int ranks, int microbatches, int group) {
  if (group == microbatches) return true;
  const int last = microbatches % group;
  return group >= ranks && group < microbatches && (last == 0 || last >= ranks);
}

}  // namespace

// ---- Whole backwards

Schedule one_forward_one_backward(int stages, int microbatches) {
  internal::check_sizes(stages, microbatches);
  return alternate({stages, microbatches},
                   [&](int rank) { return stages - 1 - rank; });
}

Schedule eager_one_forward_one_backward(int stages, int microbatches) {
  return interleaved(stages, microbatches, /*stages_per_rank=*/1);
}

Schedule interleaved(int ranks, int microbatches, int stages_per_rank,
                     int group) {
  internal::check_sizes(ranks, microbatches, stages_per_rank);
  if (group == 0) group = default_group(ranks, microbatches);
  if (group < 1 || !fits(ranks, microbatches, group)) {
    internal::refuse(
        "micro-batches cannot be interleaved in groups of ", group,
        ": a group must have all of them, or fewer but at least as many as "
        "there are ranks, also the last group; ",
        default_group(ranks, microbatches),
        " is possible, or 0 for the default (ranks: ", ranks,
        ", micro-batches: ", microbatches, ")");
  }
  return alternate(
      {ranks, microbatches, stages_per_rank, group}, [&](int rank) {
        return 2 * (ranks - 1 - rank) + (stages_per_rank - 1) * group;
      });
}

int default_group(int ranks, int microbatches) {
  internal::check_sizes(ranks, microbatches);
  int group = std::min(ranks, microbatches);
  // Ends at `microbatches` at the latest, which is one group of all.
  while (!fits(ranks, microbatches, group)) ++group;
  return group;
}

// ---- Backwards in two parts

Schedule zero_bubble_h1(int ranks, int microbatches) {
  return zero_bubble_interleaved(ranks, microbatches, /*stages_per_rank=*/1);
}

Schedule zero_bubble_h2(int ranks, int microbatches) {
  internal::check_sizes(ranks, microbatches);
  return alternate(
      {ranks, microbatches}, [&](int rank) { return 2 * (ranks - 1 - rank); },
      [](int rank) { return 2 * rank; });
}

Schedule zero_bubble_interleaved(int ranks, int microbatches,
                                 int stages_per_rank) {
  internal::check_sizes(ranks, microbatches, stages_per_rank);
  const int group = default_group(ranks, microbatches);
  return alternate(
      {ranks, microbatches, stages_per_rank, group},
      [&](int rank) {
        return ranks - 1 - rank + (stages_per_rank - 1) * group;
      },
      [](int rank) { return rank; });
}

}  // namespace gpipe
