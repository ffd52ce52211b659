// A step with the loss computed in the pipeline, on the stages that are here.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/runtime/border.h"
#include "gpipe/runtime/cell.h"
#include "gpipe/runtime/checkpoint.h"
#include "gpipe/runtime/mini_batch.h"
#include "gpipe/runtime/step.h"
#include "gpipe/runtime/train.h"
#include "gpipe/runtime/train_pass.h"
#include "gpipe/runtime/value.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Which rank has each stage. std::invalid_argument for a schedule that is not
// valid; c10::ValueError for one of another number of stages or ranks, with the
// name of the `options` that a pipeline of its size is made with.
std::vector<int> check_schedule(const Schedule& schedule, int64_t stages,
                                int64_t ranks, const std::string& options);

// `schedule` with the recomputes of `checkpoint`, if it has backwards and no
// recompute of its own.
Schedule with_checkpoint(const Schedule& schedule, Checkpoint checkpoint);

// First it is given what its stages take from the user, then start() makes the
// cells, the schedule is run, finish() ends it, and there are a result and
// gradients. `.grad` and deferred BatchNorm statistics are left alone until
// accumulate().
//
// Threads: one, but for set_rows().
class TrainStep {
 public:
  // `schedule`: the whole one, as it will be run. `border`: if there are stages
  // elsewhere. Both must live as long. c10::Error for a schedule with backwards
  // where gradients are disabled.
  // `before`: see Step.
  TrainStep(Stages& stages, const Schedule& schedule,
            const TrainOptions& options, Border* border = nullptr,
            int64_t before = 0);
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  // Where the first stage is, what check_rows() (microbatch.h) has let pass.
  // c10::ValueError if the rows are not split into as many micro-batches as the
  // schedule has.
  void give_input(const Value& input);

  // Where the last stage is, after the input; `loss` must live as long.
  // c10::ValueError for tensors that do not have a row for each of the input's.
  void give_target(const Value& target, const LossFunction& loss);

  // Without a target the last stage gives its outputs, and no loss.
  // `all_rows`: what the losses' weights are parts of, if other pipelines have
  // a share; else the rows of the input.
  void start(std::optional<int64_t> all_rows = std::nullopt);

  // Whether anything has drawn random numbers.
  bool drew() const { return step_->seed.used(); }

  // What the schedule is run with.
  TrainPass& pass() { return *pass_; }
  StepSeed& seed() { return step_->seed; }

  int64_t microbatches() const { return microbatches_; }
  bool with_backward() const { return with_backward_; }
  // Of the micro-batches, where the first stage is.
  const std::vector<int64_t>& rows() const { return rows_; }
  // What the graphs of the cells that are here end in, once they have run.
  std::vector<SharedLeaf> leaves() const { return step_->shared_leaves(); }
  // Of the losses, where the last stage is, once all forwards have run.
  const std::vector<double>& weights() const { return weights_; }

  // Of a micro-batch, and of all together, where the first stage is elsewhere,
  // before its boundary is delivered. c10::ValueError if the target has others.
  // Threads: any, one after the other.
  void set_rows(int64_t microbatch, int64_t rows, int64_t all_rows);

  // The rest of what may fail without a trace.
  void finish();

  // Where the last stage is; once.
  StepResult result();

  // Gradients as they will be accumulated, of the parameters that are here.
  struct LeafGrad {
    at::Tensor leaf, grad;
    int64_t partition = -1;  // the first one here that uses it
    bool shared = false;     // with another one here
  };
  std::vector<LeafGrad>& leaf_grads();

  // With TrainOptions::check_finite, NonFiniteError if micro-batches whose
  // gradients are finite have a sum that is not.
  void check_sums();

  // After finish(): into deferred BatchNorm statistics; and, after `let_go`,
  // into `.grad` of parameters and of the input, calling hooks. These, and the
  // graph behind the input, may come back to the pipeline.
  void accumulate(const std::function<void()>& let_go);

  Stages& stages_;
  const Schedule& schedule_;
  const TrainOptions options_;
  Border* const border_;
  const int64_t before_;
  const int64_t microbatches_;
  const bool with_backward_;
  const c10::AutoGradMode grad_mode_;

  Value input_;
  std::optional<MiniBatch> batch_;
  std::vector<int64_t> rows_;
  const LossFunction* loss_ = nullptr;
  std::vector<Value> targets_;  // by micro-batch

  std::vector<torch::autograd::Edge> accumulators_;
  std::optional<Step> step_;
  std::deque<LossHead> heads_;
  std::optional<MiniBatchNorms> norms_;
  std::vector<double> weights_;  // of the losses
  std::optional<TrainPass> pass_;
  std::optional<std::vector<LeafGrad>> leaf_grads_;
};

}  // namespace gpipe
