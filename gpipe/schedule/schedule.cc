#include "gpipe/schedule/schedule.h"

#include <algorithm>

namespace gpipe {

std::string to_string(const Action& action) {
  return std::to_string(action.stage) + internal::letter_of(action.kind) +
         std::to_string(action.microbatch);
}

bool internal::has_kind(const Schedule& schedule, ActionKind kind) {
  return std::ranges::any_of(schedule.ranks, [kind](const auto& rank) {
    return std::ranges::any_of(
        rank, [kind](const Action& each) { return each.kind == kind; });
  });
}

}  // namespace gpipe
