#include "gpipe/schedule/generators/forward_only.h"

#include "gpipe/schedule/sizes.h"

namespace gpipe {

Schedule forward_only(int stages, int microbatches) {
  internal::check_sizes(stages, microbatches);
  Schedule schedule;
  schedule.ranks.resize(stages);
  for (int stage = 0; stage < stages; ++stage) {
    for (int i = 0; i < microbatches; ++i) {
      schedule.ranks[stage].push_back({stage, ActionKind::kForward, i});
    }
  }
  return schedule;
}

}  // namespace gpipe
