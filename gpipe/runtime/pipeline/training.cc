#include "gpipe/runtime/pipeline/training.h"

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "gpipe/base/threads/exit_gate.h"
#include "gpipe/failure.h"
#include "gpipe/runtime/pipeline/loss_totals.h"
#include "gpipe/runtime/pipeline/train_schedule.h"
#include "gpipe/runtime/pipeline/train_step.h"
#include "gpipe/runtime/run/caught.h"
#include "gpipe/runtime/run/recording.h"
#include "gpipe/schedule/placement.h"

namespace gpipe::internal {
namespace {

// One training step. The functions are called in the order in which they stand
// here.
class Training {
 public:
  Training(StageWorkers& workers, const StepArguments& given, StepPeers& peers)
      : workers_(workers),
        stages_(workers.stages()),
        given_(given),
        peers_(peers),
        first_here_(!stages_.partitions.front().remote),
        last_here_(!stages_.partitions.back().remote) {}

  void begin() {
    const std::optional<int64_t> all_rows =
        peers_.begin(given_, [this]() -> TrainStep& { return prepare(); });
    outside_schedule(at_partition(0, Phase::kScatter),
                     [&] { step_->start(all_rows); });
  }

  void run() {
    if (given_.options.timeline()) {
      recording_.emplace(workers_.executor().devices(),
                         given_.options.memory());
    }
    Recording* const recording = recording_ ? &*recording_ : nullptr;
    peers_.connect(*step_, recording);
    workers_.run(plan_->mine, step_->pass(), recording);
    peers_.disconnect();
  }

  // `unlock`: see TrainStep::accumulate().
  StepResult end(const std::function<void()>& unlock) {
    const Failure last = at_partition(stages_.size() - 1, Phase::kGather);
    const Failure gradients = at_partition(Failure::kAll, Phase::kGradients);
    StepResult result;
    if (last_here_)
      result = outside_schedule(last, [&] { return step_->result(); });
    // Before peers_.end(), because other ranks may still run their part.
    peers_.add_up(*step_);
    step_->check_sums();
    outside_schedule(gradients, [&] { step_->finish(); });
    const LossTotals totals = outside_schedule(last, [&] {
      LossTotals totals = peers_.end(*step_, result);
      totals.write_to(result);
      return totals;
    });
    if (recording_) result.timeline = recording_->timeline();
    outside_schedule(gradients, [&] {
      if (totals.weighted && step_->with_backward()) {
        step_->divide_gradients(totals.weight);
        peers_.confirm_division();
      }
      step_->accumulate(unlock);
    });
    return result;
  }

 private:
  TrainStep& prepare() {
    given_.check();
    plan_.emplace(peers_.plan(given_.schedule, given_.checkpoint));
    step_.emplace(stages_, plan_->whole, given_.options, peers_.remote(),
                  peers_.before(num_microbatches(plan_->whole)));
    outside_schedule(at_partition(0, Phase::kScatter), [this] {
      if (first_here_) step_->give_input(given_.input);
      if (given_.input.split() || given_.target.split()) {
        step_->keep_outputs_split();
      }
      if (last_here_ && given_.loss) {
        step_->give_target(given_.target, *given_.loss);
      }
    });
    return *step_;
  }

  // Runs a part of the step that is not in the schedule. In several processes
  // its exception has no place, because it may be that of another rank.
  template <typename Part>
  std::invoke_result_t<Part&> outside_schedule(const Failure& place,
                                               Part part) {
    return peers_.remote() ? part()
                           : workers_.outside_schedule(place, std::move(part));
  }

  StageWorkers& workers_;
  Stages& stages_;
  const StepArguments& given_;
  StepPeers& peers_;
  const bool first_here_, last_here_;
  std::optional<StepPlan> plan_;
  std::optional<TrainStep> step_;
  std::optional<Recording> recording_;
};

}  // namespace

StepResult train(StageWorkers& workers, const StepArguments& given,
                 StepPeers& peers) {
  if (has_backward(given.schedule)) workers.executor().check_backward();
  std::unique_lock<std::mutex> running = workers.enter();
  const WorkScope work;
  peers.open();
  Training training(workers, given, peers);
  try {
    training.begin();
    training.run();
    return training.end([&] { running.unlock(); });
  } catch (...) {
    peers.fail(running.owns_lock());
    throw;
  }
}

}  // namespace gpipe::internal
