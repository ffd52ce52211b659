#include "gpipe/schedule/needs.h"

#include <limits>

namespace gpipe::internal {

Needs needs(const Action& action) {
  const int stage = action.stage, i = action.microbatch;
  // In a schedule that is not validated, stage - 1 or stage + 1 may overflow.
  const bool has_before = stage > std::numeric_limits<int>::min();
  const bool has_after = stage < std::numeric_limits<int>::max();
  Needs needs;
  switch (action.kind) {
    case ActionKind::kForward:
      if (has_before) needs.add(stage - 1, ActionKind::kForward, i);
      break;
    case ActionKind::kRecompute:
      needs.add(stage, ActionKind::kForward, i);
      break;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      needs.add(stage, ActionKind::kForward, i);
      needs.add(stage, ActionKind::kRecompute, i);
      needs.add(stage, ActionKind::kReload, i);
      if (!has_after) break;
      needs.add(stage + 1, ActionKind::kBackward, i);
      needs.add(stage + 1, ActionKind::kBackwardInput, i);
      break;
    case ActionKind::kBackwardWeight:
      needs.add(stage, ActionKind::kBackwardInput, i);
      break;
    case ActionKind::kOffload:
      needs.add(stage, ActionKind::kForward, i);
      needs.add(stage, ActionKind::kRecompute, i);
      break;
    case ActionKind::kReload:
      needs.add(stage, ActionKind::kOffload, i);
      break;
  }
  return needs;
}

}  // namespace gpipe::internal
