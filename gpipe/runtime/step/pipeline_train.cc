// Training steps: the loss is computed in the pipeline.
#include <c10/util/Exception.h>

#include <utility>

#include "gpipe/runtime/cell/phase.h"
#include "gpipe/runtime/step/pipeline.h"
#include "gpipe/runtime/step/train_step.h"

namespace gpipe::internal {

Plan Pipeline::make_plan(const Schedule& schedule,
                         Checkpoint checkpoint) const {
  const auto& devices = executor_.devices();
  const std::vector<int> placed =
      check_schedule(schedule, stages_.size(),
                     static_cast<int64_t>(devices.size()), "GPipeOptions");
  for (std::size_t s = 0; s < placed.size(); ++s) {
    TORCH_CHECK_VALUE(
        devices[placed[s]] == stages_.partitions[s].device,
        "the schedule has stage ", s, " on rank ", placed[s], " (",
        devices[placed[s]], "), but partition ", s, " is on ",
        stages_.partitions[s].device,
        "; make the pipeline with the schedule's GPipeOptions::placement");
  }
  return Plan(with_checkpoint(schedule, checkpoint));
}

StepResult Pipeline::train(const Batch& input, const Batch& target,
                           const LossFunction& loss, const Schedule& schedule,
                           Checkpoint checkpoint, const TrainOptions& options) {
  if (has_backward(schedule)) executor_.check_backward();
  auto running = enter();
  const Plan& plan = train_plans_.get(
      schedule, checkpoint, [&] { return make_plan(schedule, checkpoint); });
  TrainStep step(stages_, plan.schedule, options);
  outside(whole(0, Phase::kScatter), [&] {
    step.give_input(input);
    step.give_target(target, loss);
    step.start();
  });
  std::optional<Recording> recording;
  if (options.timeline()) {
    recording.emplace(executor_.devices(), options.memory());
  }
  run(plan, step.pass(), recording ? &*recording : nullptr);

  step.check_sums();
  StepResult result = outside(whole(stages_.size() - 1, Phase::kGather), [&] {
    StepResult result = step.result();
    step.totals().check();
    step.totals().write_to(result);
    return result;
  });
  if (recording) result.timeline = recording->timeline();
  outside(whole(Failure::kAll, Phase::kGradients), [&] {
    step.finish();
    if (step.totals().weighted) step.divide_gradients(step.totals().weight);
    step.accumulate([&] { running.unlock(); });
  });
  return result;
}

}  // namespace gpipe::internal
