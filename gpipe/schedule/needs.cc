#include "gpipe/schedule/needs.h"

namespace gpipe {

Needs needs(const Action& action) {
  const int stage = action.stage, i = action.microbatch;
  Needs needs;
  switch (action.kind) {
    case Kind::kForward:
      needs.add(stage - 1, Kind::kForward, i);
      break;
    case Kind::kRecompute:
      needs.add(stage, Kind::kForward, i);
      break;
    case Kind::kBackward:
    case Kind::kBackwardInput:
      needs.add(stage, Kind::kForward, i);
      needs.add(stage, Kind::kRecompute, i);
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
