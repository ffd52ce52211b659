#include "gpipe/schedule/needs.h"

namespace gpipe {

std::vector<Action> needs(const Action& action) {
  const auto [stage, kind, i] = action;
  switch (kind) {
    case Kind::kForward:
      return {{stage - 1, Kind::kForward, i}};
    case Kind::kRecompute:
      return {{stage, Kind::kForward, i}};
    case Kind::kBackward:
    case Kind::kBackwardInput:
      return {{stage, Kind::kForward, i},
              {stage, Kind::kRecompute, i},
              {stage + 1, Kind::kBackward, i},
              {stage + 1, Kind::kBackwardInput, i}};
    case Kind::kBackwardWeight:
      return {{stage, Kind::kBackwardInput, i}};
  }
  return {};
}

}  // namespace gpipe
