// A training step with the loss computed in the pipeline: its schedule, its
// part on the stages of this process, and its run together with the other
// processes of the pipeline.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/edge.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell/cell.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/runtime/recompute/buffers.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/run/recording.h"
#include "gpipe/runtime/step/loss_totals.h"
#include "gpipe/runtime/step/passes.h"
#include "gpipe/runtime/step/step.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/train.h"

namespace gpipe::internal {

// Returns whether `schedule` has backwards, and so is no schedule of
// evaluate().
bool has_backward(const Schedule& schedule);

// Returns the cells (stage, micro-batch) of this process that have an action of
// this kind. `partitions`: those of the stages; cells of remote ones are left
// out, since a schedule of 1,024 ranks has millions.
std::set<std::pair<int64_t, int64_t>> cells_with(
    const Schedule& schedule, ActionKind kind,
    const std::vector<Partition>& partitions);

// Checks `schedule` and returns the rank of each stage. Throws
// std::invalid_argument if the schedule is not valid, and c10::ValueError if it
// does not have `stages` stages on `ranks` ranks. `options`: name of the
// pipeline's options type, for the error.
std::vector<int> check_schedule(const Schedule& schedule, int64_t stages,
                                int64_t ranks, const std::string& options);

// Returns `schedule` with the recomputes of `checkpoint` added. Returns it
// unchanged if it has no backwards, or has recomputes of its own.
Schedule with_checkpoint(const Schedule& schedule, Checkpoint checkpoint);

// A cache of values made from (schedule, checkpoint mode). It keeps the 8 most
// recently made. Not thread-safe.
template <typename Made>
class ScheduleCache {
 public:
  // Returns the cached value, or that of make() if there is none. The reference
  // is valid until 8 other values have been made.
  template <typename Make>
  const Made& get(const Schedule& schedule, Checkpoint checkpoint, Make make) {
    for (const Entry& each : entries_) {
      if (each.checkpoint == checkpoint &&
          each.schedule.ranks == schedule.ranks) {
        return each.made;
      }
    }
    Made made = make();
    if (entries_.size() == kKept) entries_.pop_front();
    entries_.push_back({schedule, checkpoint, std::move(made)});
    return entries_.back().made;
  }

 private:
  static constexpr std::size_t kKept = 8;
  struct Entry {
    Schedule schedule;
    Checkpoint checkpoint;
    Made made;
  };
  std::deque<Entry> entries_;
};

// One training step. Order of calls: give_input() and give_target(), where the
// first and the last stage are; start(), which makes the cells; the schedule is
// run on pass(); result(), finish(), accumulate(). `.grad` and deferred
// BatchNorm statistics do not change before accumulate().
//
// Threads: one, except for set_rows().
class TrainStep {
 public:
  // `schedule`: the whole schedule, as it will be run. `remote`: handles remote
  // stages; null if there are none. Both must outlive the object. `before`: see
  // Step. Throws c10::Error if the schedule has backwards and gradients are
  // disabled.
  TrainStep(Stages& stages, const Schedule& schedule,
            const TrainOptions& options, RemoteStages* remote = nullptr,
            int64_t before = 0);
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  // Provides the input, if the first stage is in this process. `input` must
  // have passed check_rows() (microbatch.h). Throws c10::ValueError if it has
  // fewer rows than the schedule has micro-batches, or another number of parts.
  void give_input(const Batch& input);

  // Provides the target and the loss, if the last stage is in this process.
  // Call after give_input(). `loss` must outlive the object. Throws
  // c10::ValueError if a tensor of `target` does not have one row per row of
  // the input, or if a part has no dimension 0 and the loss no weight. Throws
  // c10::ValueError if `target` is already split but the input is not, or the
  // reverse.
  void give_target(const Batch& target, const LossFunction& loss);

  // Makes the result hold the outputs by micro-batch, not concatenated.
  void keep_outputs_split() { split_outputs_ = true; }

  // Makes the cells. Without a target the last stage returns its outputs, and
  // no loss. `all_rows`: the number of rows that weights of losses refer to, if
  // other pipelines have a share; by default the sum of rows().
  void start(std::optional<int64_t> all_rows = std::nullopt);

  // Returns whether any operator has drawn random numbers.
  bool drew() const { return step_->seed.used(); }

  // Returns the actor with which the schedule is run.
  StepPass& pass() { return *pass_; }
  StepSeed& seed() { return step_->seed; }

  int64_t microbatches() const { return microbatches_; }
  bool with_backward() const { return with_backward_; }
  // Returns the rows of each micro-batch, if the first stage is in this
  // process, or if the target is already split. Parts of a split target count
  // the rows, not those of the input.
  const std::vector<int64_t>& rows() const { return rows_; }
  // Returns the leaves of the cells in this process. Call after they have run.
  std::vector<SharedLeaf> leaves() const { return step_->shared_leaves(); }
  // Returns the gradients of the losses with which the backwards begin: the
  // shares of the rows, or 1 if the loss is weighted.
  const std::vector<double>& weights() const { return weights_; }

  // Sets the rows of one micro-batch, and of all micro-batches together. Called
  // if the first stage is remote, before the boundary tensors of the
  // micro-batch are delivered. Throws c10::ValueError if the target has other
  // rows. Does nothing if the target was already split, because its parts count
  // the rows.
  // Threads: any, one at a time.
  void set_rows(int64_t microbatch, int64_t rows, int64_t all_rows);

  // Does the remaining work that can throw; on error no state has changed.
  // Throws c10::Error if replicas add up the gradients, but layers have added
  // to `.grad` themselves.
  void finish();

  // Returns the result, if the last stage is in this process, without `loss`,
  // `weight` and `metrics`: these come from totals(). Call once.
  StepResult result();
  // Returns the losses added up; empty before result(), or without a loss.
  const LossTotals& totals() const { return totals_; }

  // Returns all leaves with their gradients, summed on the first call. Callers
  // may change them before accumulate(), and may add leaves that no partition
  // of this process uses.
  std::vector<SharedLeaf>& leaf_grads();

  // Checks the sums over micro-batches, if TrainOptions::check_finite is set.
  // Throws NonFiniteError if a sum is not finite although its parts are.
  void check_sums();

  // Divides all gradients by the total weight of a weighted loss. Call between
  // finish() and accumulate(). Works in place where this object alone holds the
  // memory. Throws c10::Error if layers have added to `.grad` themselves.
  void divide_gradients(double weight);

  // Updates deferred BatchNorm statistics. Then ends pass() and calls `unlock`.
  // Then adds gradients to `.grad` of parameters and of the input, and calls
  // hooks. Call after finish(). `unlock` must release the pipeline's lock,
  // because hooks and the graph behind the input may call the pipeline.
  void accumulate(const std::function<void()>& unlock);

 private:
  // The gradient of a parameter before the step.
  struct GradBefore {
    int64_t stage;
    at::Tensor parameter, grad;
    WatchedVersion version;
  };

  void note_grads();
  // Throws c10::Error if layers have changed `.grad` since note_grads(), and no
  // other thread may have done so. Sets `.grad` to what note_grads() saw; what
  // was added to that in place stays. `why`: why the step does not allow
  // it.
  void check_grads(const char* why);

  Stages& stages_;
  const Schedule& schedule_;
  const TrainOptions options_;
  RemoteStages* const remote_;
  const int64_t before_;
  const int64_t microbatches_;
  const bool with_backward_;
  const c10::AutoGradMode grad_mode_;

  std::optional<MiniBatch> batch_;
  std::vector<int64_t> rows_;
  const LossFunction* loss_ = nullptr;
  std::vector<Value> targets_;  // by micro-batch
  bool target_split_ = false;
  bool split_outputs_ = false;

  std::vector<torch::autograd::Edge> accumulators_;
  std::vector<GradBefore> grads_before_;
  std::optional<int64_t> additions_before_;  // see between_additions()
  std::optional<Step> step_;
  std::deque<LossHead> heads_;
  std::optional<MiniBatchNorms> norms_;
  std::vector<int64_t> input_rows_;  // by micro-batch, from set_rows()
  std::vector<double> weights_;      // gradients of the losses
  LossTotals totals_;
  std::optional<StepPass> pass_;
  std::optional<std::vector<SharedLeaf>> leaf_grads_;
  // The total weight of a weighted loss; divides the input's gradients.
  std::optional<double> divisor_;
};

// In which mode a step runs.
struct StepMode {
  // Which micro-batches are recomputed if the schedule has no recomputes.
  Checkpoint checkpoint = Checkpoint::kNever;
  // Whether the pipeline is in training mode; its single layers may differ.
  bool training = false;
  // Lives until the pipeline's lock is released; may be null.
  std::shared_ptr<void> scope = nullptr;
  // The schedule, if StepArguments::schedule is null.
  Schedule schedule = {};
};

// The arguments of a training step.
struct StepArguments {
  // `input` is read where the first stage is; `target` and `loss` are read
  // where the last stage is.
  const Batch& input;
  const Batch& target;
  // Null to compute outputs only, with a schedule without backwards.
  const LossFunction* loss;
  // Null if `mode` chooses it. It has no backwards then.
  const Schedule* schedule;
  // Called under the pipeline's lock, since evaluate() on another thread
  // changes training modes until it releases the lock, and ranks may agree on
  // the number of micro-batches.
  std::function<StepMode()> mode;
  const TrainOptions& options;
  // Throws if the model or the input cannot be used. Called first.
  std::function<void()> check = nullptr;
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
  // `prepare`: checks what this rank was given, with checked_schedule(). If it
  // throws on one rank, begin() throws on all.
  virtual std::optional<int64_t> begin(
      const StepArguments& /*given*/, const StepMode& /*mode*/,
      const std::function<TrainStep&()>& prepare) {
    prepare();
    return std::nullopt;
  }
  // Returns `schedule` as it is run, with the recomputes of `checkpoint`; valid
  // until the step ends. Throws if it does not fit the pipeline.
  virtual const Schedule& checked_schedule(const Schedule& schedule,
                                           Checkpoint checkpoint) = 0;
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
  // may already run. After fail(), train() waits for that step.
  virtual void fail(bool /*locked*/) {}
};

// Runs one training step, whose loss is computed in the pipeline, and returns
// its result. Waits until no other mini-batch runs, then blocks until the step
// has ended. PipelineModule::train_step() describes results and errors.
//
// `stages`, `executor`: the stages of this process, and the executor with a
// worker for each rank.
// `given`: the input, the target, the loss, the schedule and the options.
// `peers`: what the processes of a pipeline do together in a step.
StepResult train(Stages& stages, Executor& executor, const StepArguments& given,
                 StepPeers& peers);

}  // namespace gpipe::internal
