// The machine: partitions, their workers, and a mini-batch going through.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/runtime/checkpoint.h"
#include "gpipe/runtime/executor.h"
#include "gpipe/runtime/failure.h"
#include "gpipe/runtime/partition.h"
#include "gpipe/runtime/recent_plans.h"
#include "gpipe/runtime/recording.h"
#include "gpipe/runtime/step.h"
#include "gpipe/runtime/train.h"
#include "gpipe/runtime/value.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Held by its GPipe and by the graphs of outputs that have not been released,
// whose backward may come after the GPipe is gone.
// Threads: any; mini-batches are served one after the other.
class Pipeline : public std::enable_shared_from_this<Pipeline> {
 public:
  // `rank_of_stage`: which worker runs each partition. Ranks count from 0.
  Pipeline(std::vector<Partition> partitions, std::vector<int> rank_of_stage,
           int threads_per_rank, bool one_at_a_time);

  // Runs `input`, already checked, in up to `chunks` micro-batches. If
  // gradients are enabled the result's graph is one node whose backward runs
  // the rest of the schedule. Throws what the first failing action threw.
  Value forward(const Value& input, int64_t chunks, Checkpoint checkpoint);

  // A whole step with the loss computed in the pipeline, by any schedule of the
  // partitions: see GPipeImpl::train_step.
  StepResult train(const Value& input, const Value& target,
                   const LossFunction& loss, const Schedule& schedule,
                   Checkpoint checkpoint, const TrainOptions& options);

  // Of the last failed pass, until a pass succeeds.
  std::optional<Failure> last_failure() const;

 private:
  friend class StepBackward;

  // The two halves of a schedule: what forward() runs, and what backward does.
  struct Plans {
    Plan forward, backward;
  };
  // For one mini-batch at a time. c10::Error where that would wait for ever.
  std::unique_lock<std::mutex> enter();
  const Plans& plans(int64_t microbatches, int64_t checkpointed);
  // Of a schedule for train(), checked.
  Plan make_plan(const Schedule& schedule, Checkpoint checkpoint) const;
  void run(const Plan& plan, Actor& actor, Recording* recording = nullptr);
  // What is done around the schedule: an exception of `part` has come from
  // `place`.
  template <typename Part>
  auto outside(const Failure& place, Part part);
  void set_failure(std::optional<Failure> failure);

  std::mutex running_;
  Stages stages_;
  const std::vector<int> rank_of_stage_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Plans>> plans_;
  RecentPlans<Plan> train_plans_;

  mutable std::mutex failure_mutex_;
  std::optional<Failure> failure_;

  Executor executor_;  // last: its workers end before anything else
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

}  // namespace gpipe
