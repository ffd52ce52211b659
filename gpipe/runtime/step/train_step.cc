#include "gpipe/runtime/step/train_step.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "gpipe/runtime/cell/accumulate.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/cell/non_finite.h"
#include "gpipe/runtime/cell/output_rows.h"
#include "gpipe/runtime/device/fault_point.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/schedule/validate.h"

namespace gpipe::internal {
namespace {

bool has(const Schedule& schedule, std::initializer_list<ActionKind> kinds) {
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
  return has(schedule, {ActionKind::kBackward, ActionKind::kBackwardInput});
}

// Returns the cells (stage, micro-batch) that the schedule recomputes.
std::set<std::pair<int64_t, int64_t>> recomputed_in(const Schedule& schedule) {
  std::set<std::pair<int64_t, int64_t>> cells;
  for (const auto& rank : schedule.ranks) {
    for (const Action& action : rank) {
      if (action.kind == ActionKind::kRecompute) {
        cells.emplace(action.stage, action.microbatch);
      }
    }
  }
  return cells;
}

// Throws c10::ValueError if `rows` rows give `found` and not `wanted`
// micro-batches.
void check_count(int64_t wanted, int64_t found, int64_t rows, int64_t each) {
  TORCH_CHECK_VALUE(
      found == wanted, "the schedule has ", wanted, " micro-batches, but ",
      rows, " rows are split into ", found, " of ", each,
      " rows, the last one perhaps smaller; give more rows, or a schedule of ",
      found, " micro-batches");
}

// Returns the rows of each micro-batch, by the first tensor of the target that
// has any; for a rank without the input.
std::vector<int64_t> rows_of_pieces(const Value& target, int64_t chunks) {
  const int64_t rows = rows_of(target);
  if (rows == 0) return {};
  const int64_t each = rows_per_microbatch(rows, chunks);
  check_count(chunks, num_microbatches(rows, chunks), rows, each);
  std::vector<int64_t> pieces;
  for (int64_t left = rows; left > 0; left -= each) {
    pieces.push_back(std::min(left, each));
  }
  return pieces;
}

// Splits `target` into the rows of the micro-batches, on `device`.
std::vector<Value> split_target(const Value& target, int64_t chunks,
                                const std::vector<int64_t>& rows,
                                const c10::Device& device) {
  int64_t all = 0;
  for (const int64_t each : rows) all += each;
  Value there = target;
  for (std::size_t k = 0; k < there.tensors().size(); ++k) {
    at::Tensor& tensor = there.tensors()[k];
    if (!tensor.defined()) continue;
    TORCH_CHECK_VALUE(tensor.dim() > 0 && tensor.size(0) == all,
                      "the target must have a row for each of the input's ",
                      all, " in dimension 0, but ",
                      target.kind() == Value::Kind::kTensor
                          ? std::string("it")
                          : c10::str("its element ", k),
                      " has the sizes ", tensor.sizes());
    tensor = tensor.to(device, /*non_blocking=*/true);
  }
  std::vector<Value> pieces(chunks, there);
  int64_t row = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (at::Tensor& tensor : pieces[i].tensors()) {
      if (tensor.defined()) tensor = tensor.narrow(0, row, rows[i]);
    }
    row += rows[i];
  }
  return pieces;
}

}  // namespace

std::vector<int> check_schedule(const Schedule& schedule, int64_t stages,
                                int64_t ranks, const std::string& options) {
  validate(schedule);
  std::vector<int> placed = rank_of_stage(schedule);
  TORCH_CHECK_VALUE(
      static_cast<int64_t>(placed.size()) == stages &&
          static_cast<int64_t>(schedule.ranks.size()) == ranks,
      "the schedule has ", placed.size(), " stages on ", schedule.ranks.size(),
      " ranks, but the pipeline has ", stages, " partitions on ", ranks,
      " ranks; make a schedule of these sizes (see gpipe/schedule.h), or the "
      "pipeline with ",
      options, "::stages_per_rank");
  return placed;
}

Schedule with_checkpoint(const Schedule& schedule, Checkpoint checkpoint) {
  if (!has_backward(schedule) || has(schedule, {ActionKind::kRecompute})) {
    return schedule;
  }
  const int64_t checkpointed =
      checkpointed_microbatches(checkpoint, num_microbatches(schedule));
  return with_recompute(schedule, [&](int i) { return i < checkpointed; });
}

TrainStep::TrainStep(Stages& stages, const Schedule& schedule,
                     const TrainOptions& options, RemoteStages* remote,
                     int64_t before)
    : stages_(stages),
      schedule_(schedule),
      options_(options),
      remote_(remote),
      before_(before),
      microbatches_(num_microbatches(schedule)),
      with_backward_(has_backward(schedule)),
      grad_mode_([this] {
        TORCH_CHECK(!with_backward_ || c10::GradMode::is_enabled(),
                    "train_step() needs gradients enabled for a schedule with "
                    "backwards: leave the NoGradGuard, or pass forward_only()");
        return with_backward_;
      }()),
      input_rows_(microbatches_),
      weights_(microbatches_) {}

void TrainStep::give_input(const Value& input) {
  input_ = input;
  batch_.emplace(input, microbatches_, with_backward_);
  rows_ = batch_->rows();
  check_count(microbatches_, batch_->microbatches(), rows_of(input),
              rows_.front());
}

void TrainStep::give_target(const Value& target, const LossFunction& loss) {
  if (!batch_) rows_ = rows_of_pieces(target, microbatches_);
  targets_ = split_target(target, microbatches_, rows_,
                          stages_.partitions.back().device);
  loss_ = &loss;
}

void TrainStep::start(std::optional<int64_t> all_rows) {
  if (with_backward_) accumulators_ = accumulators_of(stages_.partitions);
  const auto recomputed = recomputed_in(schedule_);
  step_.emplace(
      stages_, microbatches_,
      [&](int64_t stage, int64_t microbatch) {
        return recomputed.count({stage, microbatch}) > 0;
      },
      before_);
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    LossHead& head = heads_.emplace_back();
    head.function = loss_;
    head.target = targets_[i];
    head.keep_output = options_.outputs();
    step_->cells.back()[i].set_head(&head);
  }
  for (auto& cells : step_->cells) {
    for (Cell& cell : cells) cell.check_finite(options_.check_finite());
  }
  BackwardPass::Options backward;
  backward.check_finite = options_.check_finite();
  backward.order = options_.fixed_sum_order() ? SumOrder::kByMicrobatch
                                              : SumOrder::kAsTheyCome;
  norms_.emplace(stages_.partitions);
  pass_.emplace(stages_, *step_,
                batch_ ? batch_->parcels() : std::vector<Activations>(),
                batch_ && batch_->leaf, weights_, std::move(backward), remote_);
  if (!batch_) return;
  for (int64_t i = 0; i < microbatches_; ++i) {
    set_rows(i, rows_[i], all_rows.value_or(rows_of(input_)));
  }
}

void TrainStep::set_rows(int64_t microbatch, int64_t rows, int64_t all_rows) {
  TORCH_CHECK_VALUE(
      rows_.empty() || rows_[microbatch] == rows, "micro-batch ", microbatch,
      " of the input has ", rows, rows == 1 ? " row, of " : " rows, of ",
      all_rows, ", but the target's has ", rows_[microbatch],
      "; on the last rank, pass the target that belongs to the input of the "
      "first rank");
  input_rows_[microbatch] = rows;
  weights_[microbatch] =
      static_cast<double>(rows) / static_cast<double>(all_rows);
}

StepResult TrainStep::result() {
  fault_point("gather", stages_.size() - 1);
  const c10::Device end = stages_.partitions.back().device;
  const c10::AutoGradMode no_graph(false);
  StepResult result;
  std::vector<Value> pieces;
  for (int64_t i = 0; i < microbatches_; ++i) {
    Activations& output = pass_->outputs()[i];
    for (const Activation& each : output.boundary)
      record_stream(each.tensor, end);
    if (!loss_) {
      std::vector<at::Tensor> tensors;
      for (Activation& each : output.boundary) {
        tensors.push_back(std::move(each.tensor));
      }
      pieces.emplace_back(output.kind, std::move(tensors));
      continue;
    }
    const at::Tensor value = output.boundary[0].tensor;
    const at::Tensor part = value * weights_[i];
    result.loss = result.loss.defined() ? result.loss + part : part;
    result.losses.push_back(value);
    if (!options_.outputs()) continue;
    for (const at::Tensor& each : heads_[i].output.tensors()) {
      record_stream(each, end);
    }
    pieces.push_back(std::move(heads_[i].output));
  }
  if (!pieces.empty()) {
    result.outputs = gather(pieces);
    warn_of_other_rows(pieces, input_rows_);
  }
  return result;
}

std::vector<TrainStep::LeafGrad>& TrainStep::leaf_grads() {
  if (!leaf_grads_) {
    const std::vector<SharedLeaf> leaves = step_->shared_leaves();
    std::vector<at::Tensor> grads = pass_->backward().take_leaf_grads(leaves);
    leaf_grads_.emplace();
    for (std::size_t k = 0; k < leaves.size(); ++k) {
      leaf_grads_->push_back({leaves[k].tensor, std::move(grads[k]),
                              leaves[k].places.front().first,
                              leaves[k].places.size() > 1});
    }
  }
  return *leaf_grads_;
}

void TrainStep::check_sums() {
  if (!options_.check_finite() || !with_backward_) return;
  NonFiniteGradients non_finite;
  for (const LeafGrad& each : leaf_grads()) {
    non_finite.look_at(
        each.grad,
        each.partition < 0
            ? "a parameter that only other replicas use"
            : pass_->backward().describe_leaf(each.partition, each.leaf));
  }
  non_finite.check(", in the sum over all micro-batches");
}

void TrainStep::finish() {
  norms_->prepare();
  if (with_backward_) leaf_grads();
}

void TrainStep::accumulate(const std::function<void()>& let_go) {
  norms_->write();
  if (with_backward_) {
    fault_point("accumulate");
    std::vector<torch::autograd::Edge> edges;
    std::vector<at::Tensor> grads;
    for (LeafGrad& each : leaf_grads()) {
      edges.push_back(torch::autograd::impl::gradient_edge(each.leaf));
      grads.push_back(std::move(each.grad));
    }
    leaf_grads_->clear();
    for (std::size_t k = 0; batch_ && k < batch_->requires_grad.size(); ++k) {
      if (!batch_->requires_grad[k]) continue;
      edges.push_back(
          torch::autograd::impl::gradient_edge(input_.tensors()[k]));
      grads.push_back(
          Element(k, batch_->pieces).join(pass_->backward().input_grads()));
    }
    let_go();
    gpipe::internal::accumulate(std::move(edges), std::move(grads));
  }
  norms_->keep();
}

}  // namespace gpipe::internal
