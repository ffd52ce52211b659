#include "gpipe/schedule/transform.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace gpipe {
namespace {

bool begins_backward(const Action& action) {
  return action.kind == ActionKind::kBackward ||
         action.kind == ActionKind::kBackwardInput;
}

bool is_backward(const Action& action) {
  return begins_backward(action) || action.kind == ActionKind::kBackwardWeight;
}

// Returns the position of the first action of the block that has actions[k].
std::size_t block_begin(const std::vector<Action>& actions, std::size_t k) {
  while (k > 0 && actions[k - 1].fused_with_next) --k;
  return k;
}

// Returns the earliest position for the recompute of the backward actions[k].
// That is after the previous backward, after the micro-batch's own forward, and
// not inside a block.
std::size_t ahead_of(const std::vector<Action>& actions, std::size_t k) {
  const Action& backward = actions[k];
  std::size_t place = block_begin(actions, k);
  while (place > 0) {
    const Action& before = actions[place - 1];
    if (is_backward(before)) break;
    if (before.kind == ActionKind::kForward && before.stage == backward.stage &&
        before.microbatch == backward.microbatch) {
      break;
    }
    --place;
  }
  while (place > 0 && actions[place - 1].fused_with_next) ++place;
  return place;
}

}  // namespace

Schedule with_recompute(const Schedule& schedule,
                        const std::function<bool(int microbatch)>& checkpointed,
                        RecomputePlacement placement) {
  return with_recompute(
      schedule, [&](int, int microbatch) { return checkpointed(microbatch); },
      placement);
}

Schedule with_recompute(
    const Schedule& schedule,
    const std::function<bool(int stage, int microbatch)>& checkpointed,
    RecomputePlacement placement) {
  Schedule result;
  for (const auto& actions : schedule.ranks) {
    // before[k] has the recomputes that are inserted right before actions[k].
    std::vector<std::vector<Action>> before(actions.size());
    for (std::size_t k = 0; k < actions.size(); ++k) {
      const Action& action = actions[k];
      if (!begins_backward(action) ||
          !checkpointed(action.stage, action.microbatch)) {
        continue;
      }
      const std::size_t begin = block_begin(actions, k);
      const bool in_block = placement == RecomputePlacement::kWithBackward &&
                            begin == k && !action.fused_with_next;
      const std::size_t place = placement == RecomputePlacement::kAhead
                                    ? ahead_of(actions, k)
                                    : begin;
      before[place].push_back(
          {action.stage, ActionKind::kRecompute, action.microbatch, in_block});
    }
    auto& out = result.ranks.emplace_back();
    for (std::size_t k = 0; k < actions.size(); ++k) {
      out.insert(out.end(), before[k].begin(), before[k].end());
      out.push_back(actions[k]);
    }
  }
  return result;
}

Schedule select(const Schedule& schedule,
                const std::function<bool(const Action&)>& keep) {
  Schedule result;
  for (const auto& actions : schedule.ranks) {
    auto& out = result.ranks.emplace_back();
    bool previous_kept = false;
    for (const Action& action : actions) {
      const bool kept = keep(action);
      if (!kept && previous_kept) out.back().fused_with_next = false;
      if (kept) out.push_back(action);
      previous_kept = kept;
    }
  }
  return result;
}

}  // namespace gpipe
