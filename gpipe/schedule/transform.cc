#include "gpipe/schedule/transform.h"

namespace gpipe {

Schedule with_recompute(
    const Schedule& schedule,
    const std::function<bool(int microbatch)>& checkpointed) {
  Schedule result;
  for (const auto& actions : schedule.ranks) {
    auto& out = result.ranks.emplace_back();
    for (const Action& action : actions) {
      const bool first_part_of_backward =
          action.kind == Kind::kBackward || action.kind == Kind::kBackwardInput;
      if (first_part_of_backward && checkpointed(action.microbatch)) {
        out.push_back({action.stage, Kind::kRecompute, action.microbatch});
      }
      out.push_back(action);
    }
  }
  return result;
}

Schedule select(const Schedule& schedule,
                const std::function<bool(const Action&)>& keep) {
  Schedule result;
  for (const auto& actions : schedule.ranks) {
    auto& out = result.ranks.emplace_back();
    for (const Action& action : actions) {
      if (keep(action)) out.push_back(action);
    }
  }
  return result;
}

}  // namespace gpipe
