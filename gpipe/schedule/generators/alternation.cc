#include "gpipe/schedule/generators/alternation.h"

#include <algorithm>
#include <vector>

namespace gpipe::internal {
namespace {

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

}  // namespace

Schedule alternate(const Loop& loop, const PerRank& warm_up,
                   const PerRank& lag) {
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

}  // namespace gpipe::internal
