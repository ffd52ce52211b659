#include "gpipe/schedule/fill_drain.h"

#include "gpipe/schedule/sizes.h"

namespace gpipe {

Schedule fill_drain(int stages, int microbatches) {
  internal::check_sizes(stages, microbatches);
  Schedule schedule;
  schedule.ranks.resize(stages);
  for (int stage = 0; stage < stages; ++stage) {
    auto& actions = schedule.ranks[stage];
    actions.reserve(2 * microbatches);
    for (int i = 0; i < microbatches; ++i) {
      actions.push_back({stage, ActionKind::kForward, i});
    }
    for (int i = microbatches - 1; i >= 0; --i) {
      actions.push_back({stage, ActionKind::kBackward, i});
    }
  }
  return schedule;
}

}  // namespace gpipe
