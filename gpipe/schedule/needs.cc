#include "gpipe/schedule/needs.h"

#include <limits>

namespace gpipe {

Needs needs(const Action& action) {
  const int stage = action.stage, i = action.microbatch;
  // In a schedule that is not validated, stage - 1 or stage + 1 may overflow.
  const bool has_before = stage > std::numeric_limits<int>::min();
  const bool has_after = stage < std::numeric_limits<int>::max();
  Needs needs;
  switch (action.kind) {
    case Kind::kForward:
      if (has_before) needs.add(stage - 1, Kind::kForward, i);
      break;
    case Kind::kRecompute:
      needs.add(stage, Kind::kForward, i);
      break;
    case Kind::kBackward:
    case Kind::kBackwardInput:
      needs.add(stage, Kind::kForward, i);
      needs.add(stage, Kind::kRecompute, i);
      if (!has_after) break;
      needs.add(stage + 1, Kind::kBackward, i);
      needs.add(stage + 1, Kind::kBackwardInput, i);
      break;
    case Kind::kBackwardWeight:
      needs.add(stage, Kind::kBackwardInput, i);
      break;
  }
  return needs;
}

}  // namespace gpipe
