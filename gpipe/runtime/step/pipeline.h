// The pipeline of one process: the partitions, their workers, and the step.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/failure.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/runtime/recompute/buffers.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/step/step.h"
#include "gpipe/runtime/step/train_step.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/train.h"

namespace gpipe::internal {

// A pipeline. It is owned by its GPipe and by the graphs of outputs that have
// not been released, because their backward may come after the GPipe is
// destroyed.
// Threads: any. Mini-batches run one after the other.
class Pipeline : public std::enable_shared_from_this<Pipeline>,
                 private StepPeers {
 public:
  // `rank_of_stage`: the worker of each partition; ranks count from 0.
  // `devices`: of the workers. Other arguments: see Stages and Executor.
  Pipeline(std::vector<Partition> partitions, Unsplit unsplit,
           std::vector<int> rank_of_stage, std::vector<c10::Device> devices,
           int threads, bool one_at_a_time);

  // Runs the checked `input` in up to `chunks` micro-batches and returns the
  // output: split if the input is, else concatenated. If gradients are enabled,
  // the output's graph is one node, whose backward runs the rest of the
  // schedule. Throws the exception of the first action that failed.
  // `checkpoint`: called under the lock, see StepArguments.
  Batch forward(const Batch& input, int64_t chunks,
                const std::function<Checkpoint()>& checkpoint);

  // Runs a whole step with the loss computed in the pipeline, by any schedule
  // that fits the partitions: see PipelineModule::train_step().
  StepResult train(const StepArguments& given) {
    return internal::train(stages_, executor_, given, *this);
  }

  // Forgets the failure of the last pass. Call first in a call that may be
  // refused before it begins a pass.
  void forget_failure() { executor_.set_failure(std::nullopt); }

  // Returns the failure of the last pass; nullopt if it succeeded.
  std::optional<Failure> last_failure() const {
    return executor_.last_failure();
  }

 private:
  friend class StepBackward;

  // In a layer that is computed again: keeps the statistics of norms as they
  // are now, but for those that have their values of the first call there. The
  // others belong to no module of that layer.
  std::optional<PastBuffers> unrestored_norms() const;

  // The two halves of a schedule: forward() runs one, backward the other.
  struct Halves {
    Schedule forward, backward;
  };
  // Returns the halves for so many micro-batches; made on first use.
  const Halves& halves(int64_t microbatches, int64_t checkpointed);
  const Schedule& checked_schedule(const Schedule& schedule,
                                   Checkpoint checkpoint) override;

  Stages stages_;
  Executor executor_;
  std::map<std::pair<int64_t, int64_t>, Halves> halves_;
  ScheduleCache<Schedule> train_schedules_;
};

}  // namespace gpipe::internal
