#include "gpipe/schedule/fill_drain.h"

#include <stdexcept>

namespace gpipe {

Schedule fill_drain(int stages, int microbatches) {
  if (stages < 1 || microbatches < 1) {
    throw std::invalid_argument(
        "a schedule needs at least 1 stage and 1 micro-batch (stages: " +
        std::to_string(stages) +
        ", micro-batches: " + std::to_string(microbatches) + ")");
  }
  Schedule schedule;
  schedule.ranks.resize(stages);
  for (int stage = 0; stage < stages; ++stage) {
    auto& actions = schedule.ranks[stage];
    actions.reserve(2 * microbatches);
    for (int i = 0; i < microbatches; ++i) {
      actions.push_back({stage, Kind::kForward, i});
    }
    for (int i = microbatches - 1; i >= 0; --i) {
      actions.push_back({stage, Kind::kBackward, i});
    }
  }
  return schedule;
}

}  // namespace gpipe
