// The interface between a training step and the other ranks of its pipeline.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "gpipe/runtime/cell/batch.h"
#include "gpipe/runtime/cell/loss.h"
#include "gpipe/runtime/pipeline/loss_totals.h"
#include "gpipe/runtime/pipeline/train_step.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/run/recording.h"
#include "gpipe/runtime/step/remote_stages.h"
#include "gpipe/schedule/checkpoint.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/train.h"

namespace gpipe::internal {

// The arguments of a training step.
struct StepArguments {
  // `input` is read where the first stage is; `target` and `loss` are read
  // where the last stage is.
  const Batch& input;
  const Batch& target;
  // Null to compute outputs only, with a schedule without backwards.
  const LossFunction* loss;
  const Schedule& schedule;
  Checkpoint checkpoint;
  const TrainOptions& options;
  // Throws if the model or the input cannot be used. Called first.
  std::function<void()> check;
};

// A schedule, and the part of it that this process runs.
struct StepPlan {
  const Schedule& whole;
  const Plan& mine;
};

// The part of a training step in which a pipeline of one process and one of
// several differ. Functions that have a definition here do nothing if there are
// no other ranks. train() calls them in the order in which they stand here, on
// the thread of its caller. Each may throw, which ends the step.
class StepPeers {
 public:
  virtual ~StepPeers() = default;

  // Checks that the other ranks can begin a step.
  virtual void open() {}

  // Blocks until all ranks have been given the step. Returns the rows of the
  // mini-batches of all replicas, if this rank knows them; see
  // TrainStep::start().
  // `prepare`: checks what this rank was given, with plan(). If it throws on
  // one rank, begin() throws on all.
  virtual std::optional<int64_t> begin(
      const StepArguments& /*given*/,
      const std::function<TrainStep&()>& prepare) {
    prepare();
    return std::nullopt;
  }
  // Returns the plan of a schedule, valid until the step ends. Throws if the
  // schedule does not fit the pipeline.
  virtual StepPlan plan(const Schedule& schedule, Checkpoint checkpoint) = 0;
  // Returns the connection to stages of other processes; null if all stages are
  // in this process.
  virtual RemoteStages* remote() { return nullptr; }
  // Returns the number of micro-batches of the replicas before this one, if
  // each has `microbatches`.
  virtual int64_t before(int64_t /*microbatches*/) const { return 0; }

  // Called before and after the schedule is run. `recording`: null unless
  // wanted.
  virtual void connect(TrainStep& /*step*/, Recording* /*recording*/) {}
  virtual void disconnect() {}

  // Adds the gradients of the replicas up, in step.leaf_grads().
  virtual void add_up(TrainStep& /*step*/) {}
  // Blocks until all ranks have ended their part. Returns the checked totals of
  // all replicas. Adds to `result` what this rank does not have: the losses of
  // its own replica.
  virtual LossTotals end(const TrainStep& step, StepResult& /*result*/) {
    step.totals().check();
    return step.totals();
  }
  // Blocks until all ranks have divided their gradients. Called if gradients
  // are divided, because that may throw on one of them.
  virtual void confirm_division() {}

  // Handles an exception of the step. Called in its catch block, while the step
  // still exists. May throw another exception in its place.
  // `locked`: false if gradients are being added to `.grad`, when another step
  // may already run.
  virtual void fail(bool /*locked*/) {}
};

}  // namespace gpipe::internal
