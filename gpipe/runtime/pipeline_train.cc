// Steps that compute the loss in the pipeline.
#include <c10/util/Exception.h>

#include <utility>

#include "gpipe/runtime/pipeline.h"
#include "gpipe/runtime/train_step.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/validate.h"

namespace gpipe {
namespace {

constexpr std::size_t kPlansKept = 8;

}  // namespace

const Plan& Pipeline::plan_of(const Schedule& schedule, Checkpoint checkpoint) {
  for (const TrainPlan& each : train_plans_) {
    if (each.checkpoint == checkpoint && each.asked.ranks == schedule.ranks) {
      return each.plan;
    }
  }
  validate(schedule);
  const std::vector<int> placed = rank_of_stage(schedule);
  TORCH_CHECK_VALUE(
      placed.size() == stages_.partitions.size() &&
          schedule.ranks.size() == executor_.devices().size(),
      "the schedule has ", placed.size(), " stages on ", schedule.ranks.size(),
      " ranks, but the pipeline has ", stages_.size(), " partitions on ",
      executor_.devices().size(),
      " ranks; make a schedule of these sizes (see gpipe/schedule.h), or the "
      "pipeline with GPipeOptions::stages_per_rank");
  for (std::size_t s = 0; s < placed.size(); ++s) {
    TORCH_CHECK_VALUE(
        executor_.devices()[placed[s]] == stages_.partitions[s].device,
        "the schedule has stage ", s, " on rank ", placed[s], " (",
        executor_.devices()[placed[s]], "), but partition ", s, " is on ",
        stages_.partitions[s].device,
        "; make the pipeline with the schedule's GPipeOptions::placement");
  }
  if (train_plans_.size() == kPlansKept) train_plans_.pop_front();
  train_plans_.push_back(
      {schedule, checkpoint, Plan(with_checkpoint(schedule, checkpoint))});
  return train_plans_.back().plan;
}

StepResult Pipeline::train(const Value& input, const Value& target,
                           const LossFunction& loss, const Schedule& schedule,
                           Checkpoint checkpoint, const TrainOptions& options) {
  std::lock_guard<std::mutex> running(running_);
  const Plan& plan = plan_of(schedule, checkpoint);
  TrainStep step(stages_, plan.schedule, options);
  step.give_input(input);
  step.give_target(target, loss);
  step.start();
  std::optional<Recording> recording;
  if (options.timeline()) recording.emplace(executor_.devices());
  run(plan, step.pass(), recording ? &*recording : nullptr);
  step.finish();

  StepResult result = step.result();
  if (recording) result.timeline = recording->timeline();
  step.accumulate();
  return result;
}

}  // namespace gpipe
