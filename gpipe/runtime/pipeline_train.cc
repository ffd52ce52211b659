// Steps that compute the loss in the pipeline.
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "gpipe/runtime/accumulate.h"
#include "gpipe/runtime/microbatch.h"
#include "gpipe/runtime/mini_batch.h"
#include "gpipe/runtime/pipeline.h"
#include "gpipe/runtime/stream.h"
#include "gpipe/runtime/train_pass.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/schedule/validate.h"

namespace gpipe {
namespace {

constexpr std::size_t kPlansKept = 8;

bool has(const Schedule& schedule, std::initializer_list<Kind> kinds) {
  for (const auto& rank : schedule.ranks) {
    for (const Action& action : rank) {
      if (std::find(kinds.begin(), kinds.end(), action.kind) != kinds.end()) {
        return true;
      }
    }
  }
  return false;
}

bool has_backward(const Schedule& schedule) {
  return has(schedule, {Kind::kBackward, Kind::kBackwardInput});
}

std::set<std::pair<int64_t, int64_t>> recomputed_in(const Schedule& schedule) {
  std::set<std::pair<int64_t, int64_t>> cells;
  for (const auto& rank : schedule.ranks) {
    for (const Action& action : rank) {
      if (action.kind == Kind::kRecompute) {
        cells.emplace(action.stage, action.microbatch);
      }
    }
  }
  return cells;
}

// A micro-batch's target goes with its input.
std::vector<Value> split_target(const Value& target, const MiniBatch& batch,
                                int64_t rows, const c10::Device& device) {
  Value there = target;
  for (std::size_t k = 0; k < there.tensors().size(); ++k) {
    at::Tensor& tensor = there.tensors()[k];
    if (!tensor.defined()) continue;
    TORCH_CHECK_VALUE(tensor.dim() > 0 && tensor.size(0) == rows,
                      "the target must have a row for each of the input's ",
                      rows, " in dimension 0, but ",
                      target.kind() == Value::Kind::kTensor
                          ? std::string("it")
                          : c10::str("its element ", k),
                      " has the sizes ", tensor.sizes());
    tensor = tensor.to(device, /*non_blocking=*/true);
  }
  std::vector<Value> pieces;
  int64_t row = 0;
  for (const Value& input : batch.pieces) {
    const int64_t count = rows_of(input);
    Value piece = there;
    for (at::Tensor& tensor : piece.tensors()) {
      if (tensor.defined()) tensor = tensor.narrow(0, row, count);
    }
    pieces.push_back(std::move(piece));
    row += count;
  }
  return pieces;
}

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
  const int64_t count = num_microbatches(schedule);
  Schedule full = schedule;
  if (has_backward(schedule) && !has(schedule, {Kind::kRecompute})) {
    const int64_t checkpointed = checkpointed_microbatches(checkpoint, count);
    full = with_recompute(schedule, [&](int i) { return i < checkpointed; });
  }
  if (train_plans_.size() == kPlansKept) train_plans_.pop_front();
  train_plans_.push_back({schedule, checkpoint, Plan(std::move(full))});
  return train_plans_.back().plan;
}

StepResult Pipeline::train(const Value& input, const Value& target,
                           const LossFunction& loss, const Schedule& schedule,
                           Checkpoint checkpoint, const TrainOptions& options) {
  std::lock_guard<std::mutex> running(running_);
  const Plan& plan = plan_of(schedule, checkpoint);
  const bool with_backward = has_backward(schedule);
  TORCH_CHECK(!with_backward || c10::GradMode::is_enabled(),
              "train_step() needs gradients enabled for a schedule with "
              "backwards: leave the NoGradGuard, or give forward_only()");
  const c10::AutoGradMode grad_mode(with_backward);

  const int64_t count = num_microbatches(schedule);
  const int64_t rows = rows_of(input);
  const MiniBatch batch(input, count, with_backward);
  TORCH_CHECK_VALUE(
      batch.microbatches() == count, "the schedule has ", count,
      " micro-batches, but ", rows, " rows are split into ",
      batch.microbatches(), " of ", rows_of(batch.pieces.front()),
      " rows, the last one perhaps smaller; give more rows, or a schedule of ",
      batch.microbatches(), " micro-batches");
  const c10::Device end = stages_.partitions.back().device;
  const std::vector<Value> targets = split_target(target, batch, rows, end);

  std::vector<torch::autograd::Edge> accumulators;
  if (with_backward) accumulators = accumulators_of(stages_.partitions);
  const auto recomputed = recomputed_in(plan.schedule);
  Step step(stages_, count, [&](int64_t stage, int64_t microbatch) {
    return recomputed.count({stage, microbatch}) > 0;
  });
  std::vector<LossHead> heads(count);
  std::vector<double> weights;
  for (int64_t i = 0; i < count; ++i) {
    heads[i].function = &loss;
    heads[i].target = targets[i];
    heads[i].keep_output = options.outputs();
    step.cells.back()[i].set_head(&heads[i]);
    weights.push_back(static_cast<double>(rows_of(batch.pieces[i])) /
                      static_cast<double>(rows));
  }
  BackwardPass::Options backward;
  backward.order = options.fixed_sum_order() ? SumOrder::kByMicrobatch
                                             : SumOrder::kAsTheyCome;
  MiniBatchNorms norms(stages_.partitions);
  TrainPass pass(stages_, step, batch.parcels(), batch.leaf, weights,
                 std::move(backward));
  std::optional<Recording> recording;
  if (options.timeline()) recording.emplace(executor_.devices());
  run(plan, pass, recording ? &*recording : nullptr);
  norms.commit();

  StepResult result;
  {
    const c10::AutoGradMode no_graph(false);
    for (int64_t i = 0; i < count; ++i) {
      const at::Tensor value = pass.loss(i);
      record_use(value, end);
      const at::Tensor part = value * weights[i];
      result.loss = result.loss.defined() ? result.loss + part : part;
      result.losses.push_back(value);
    }
    if (options.outputs()) {
      std::vector<Value> pieces;
      for (LossHead& head : heads) {
        for (const at::Tensor& each : head.output.tensors()) {
          record_use(each, end);
        }
        pieces.push_back(std::move(head.output));
      }
      result.outputs = gather(pieces);
    }
  }
  if (recording) result.timeline = recording->timeline();
  if (!with_backward) return result;

  const std::vector<SharedLeaf> leaves = step.shared_leaves();
  std::vector<torch::autograd::Edge> edges;
  for (const SharedLeaf& leaf : leaves) {
    edges.push_back(torch::autograd::impl::gradient_edge(leaf.tensor));
  }
  std::vector<at::Tensor> grads = pass.backward().take_leaf_grads(leaves);
  for (std::size_t k = 0; k < batch.requires_grad.size(); ++k) {
    if (!batch.requires_grad[k]) continue;
    edges.push_back(torch::autograd::impl::gradient_edge(input.tensors()[k]));
    grads.push_back(
        Element(k, batch.pieces).join(pass.backward().input_grads()));
  }
  accumulate(std::move(edges), std::move(grads));
  return result;
}

}  // namespace gpipe
