#include "gpipe/runtime/pipeline/train_schedule.h"

#include <c10/util/Exception.h>

#include "gpipe/schedule/microbatches.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/schedule/validate.h"

namespace gpipe::internal {

std::set<std::pair<int64_t, int64_t>> cells_with(const Schedule& schedule,
                                                 ActionKind kind) {
  std::set<std::pair<int64_t, int64_t>> cells;
  for (const auto& rank : schedule.ranks) {
    for (const Action& action : rank) {
      if (action.kind == kind) {
        cells.emplace(action.stage, action.microbatch);
      }
    }
  }
  return cells;
}

bool has_backward(const Schedule& schedule) {
  return has_kind(schedule, ActionKind::kBackward) ||
         has_kind(schedule, ActionKind::kBackwardInput);
}

std::vector<int> check_schedule(const Schedule& schedule, int64_t stages,
                                int64_t ranks, const std::string& options) {
  validate(schedule);
  std::vector<int> placed = rank_of_stage(schedule);
  TORCH_CHECK_VALUE(
      static_cast<int64_t>(placed.size()) == stages &&
          static_cast<int64_t>(schedule.ranks.size()) == ranks,
      "the schedule has ", placed.size(), " stages on ", schedule.ranks.size(),
      " ranks, but the pipeline has ", stages, " partitions on ", ranks,
      " ranks; make a schedule of these sizes (see gpipe/schedule.h), or the "
      "pipeline with ",
      options, "::stages_per_rank");
  return placed;
}

Schedule with_checkpoint(const Schedule& schedule, Checkpoint checkpoint) {
  if (!has_backward(schedule) || has_kind(schedule, ActionKind::kRecompute)) {
    return schedule;
  }
  const int64_t checkpointed =
      checkpointed_microbatches(checkpoint, num_microbatches(schedule));
  return with_recompute(schedule, [&](int i) { return i < checkpointed; });
}

}  // namespace gpipe::internal
