// The common part of the schedules ZB-V and DualPipeV, whose ranks have two
// stages each, placed in a V. Used by the generators in this folder only.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/transform.h"

namespace gpipe::internal {

// The actions of one rank. A chunk is one of its two stages (0: the first, 1:
// the second). Each kind takes the micro-batches of a chunk in ascending order.
class VRow {
 public:
  VRow(int ranks, int rank) : stages_{rank, 2 * ranks - 1 - rank} {}

  void forward(int chunk, bool fused_with_next = false) {
    actions_.push_back({stages_[chunk], ActionKind::kForward,
                        forwards_[chunk]++, fused_with_next});
  }
  void backward(int chunk) {
    actions_.push_back(
        {stages_[chunk], ActionKind::kBackward, backwards_[chunk]++});
  }
  // Adds an I and keeps its W for weight().
  void input(int chunk) {
    const int i = backwards_[chunk]++;
    actions_.push_back({stages_[chunk], ActionKind::kBackwardInput, i});
    weights_.push_back({stages_[chunk], ActionKind::kBackwardWeight, i});
  }
  // Adds the oldest pending W, or that of one chunk. Returns false if there is
  // none.
  bool weight(std::optional<int> chunk = std::nullopt) {
    const auto next = std::ranges::find_if(weights_, [&](const Action& each) {
      return !chunk || each.stage == stages_[*chunk];
    });
    if (next == weights_.end()) return false;
    actions_.push_back(*next);
    weights_.erase(next);
    return true;
  }

  int forwards(int chunk) const { return forwards_[chunk]; }
  std::vector<Action> actions() && { return std::move(actions_); }

 private:
  int stages_[2];
  int forwards_[2] = {}, backwards_[2] = {};
  std::vector<Action> weights_;  // pending
  std::vector<Action> actions_;
};

// Returns the schedule of the rows `row(ranks, rank, microbatches)`, which need
// `least` micro-batches. With fewer, the order is the one for `least`, without
// the missing micro-batches.
template <typename Row>
Schedule v_schedule(int ranks, int microbatches, int least, const Row& row) {
  Schedule schedule;
  for (int rank = 0; rank < ranks; ++rank) {
    schedule.ranks.push_back(row(ranks, rank, std::max(least, microbatches)));
  }
  return select(schedule, [&](const Action& action) {
    return action.microbatch < microbatches;
  });
}

}  // namespace gpipe::internal
