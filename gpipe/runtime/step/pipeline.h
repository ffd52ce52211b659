// The pipeline of one process: the partitions, their workers, and the step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell/batch.h"
#include "gpipe/runtime/cell/loss.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/run/failure.h"
#include "gpipe/runtime/run/recording.h"
#include "gpipe/runtime/step/recent_plans.h"
#include "gpipe/runtime/step/step.h"
#include "gpipe/runtime/step/train.h"
#include "gpipe/schedule/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// A pipeline. It is owned by its GPipe and by the graphs of outputs that have
// not been released, because their backward may come after the GPipe is
// destroyed.
// Threads: any. Mini-batches run one after the other.
class Pipeline : public std::enable_shared_from_this<Pipeline> {
 public:
  // `rank_of_stage`: the worker of each partition; ranks count from 0.
  // `unsplit`: elements of the input that every micro-batch gets whole.
  Pipeline(std::vector<Partition> partitions, std::vector<int> rank_of_stage,
           int threads_per_rank, bool one_at_a_time, Unsplit unsplit);

  // Runs the checked `input` in up to `chunks` micro-batches and returns the
  // output: split if the input is, else concatenated. If gradients are enabled,
  // the output's graph is one node, whose backward runs the rest of the
  // schedule. Throws the exception of the first action that failed.
  Batch forward(const Batch& input, int64_t chunks, Checkpoint checkpoint);

  // Runs a whole step with the loss computed in the pipeline, by any schedule
  // that fits the partitions: see GPipeImpl::train_step.
  StepResult train(const Batch& input, const Batch& target,
                   const LossFunction& loss, const Schedule& schedule,
                   Checkpoint checkpoint, const TrainOptions& options);

  // Returns the failure of the last pass; nullopt if it succeeded.
  std::optional<Failure> last_failure() const;

 private:
  friend class StepBackward;

  // The two halves of a schedule: forward() runs one, backward the other.
  struct Plans {
    Plan forward, backward;
  };
  // Blocks until no other mini-batch runs, and returns the lock. Throws
  // c10::Error if that would deadlock (see Executor::check_caller()).
  std::unique_lock<std::mutex> enter();
  // Returns the plans for so many micro-batches; made on first use.
  const Plans& plans(int64_t microbatches, int64_t checkpointed);
  // Checks a schedule for train() and returns its plan.
  Plan make_plan(const Schedule& schedule, Checkpoint checkpoint) const;
  // Runs a plan on the workers. Sets or clears the failure, and rethrows.
  void run(const Plan& plan, Actor& actor, Recording* recording = nullptr);
  // Runs `part`, which is work before or after the schedule. If it throws, sets
  // the failure to `place` and rethrows.
  template <typename Part>
  auto outside(const Failure& place, Part part);
  void set_failure(std::optional<Failure> failure);

  std::mutex running_;
  Stages stages_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Plans>> plans_;
  RecentPlans<Plan> train_plans_;

  mutable std::mutex failure_mutex_;
  std::optional<Failure> failure_;

  Executor executor_;  // last: its workers end before other members
};

template <typename Part>
auto Pipeline::outside(const Failure& place, Part part) {
  try {
    return part();
  } catch (...) {
    set_failure(caught_at(place));
    throw;
  }
}

}  // namespace gpipe::internal
