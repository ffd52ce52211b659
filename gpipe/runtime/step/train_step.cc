#include "gpipe/runtime/step/train_step.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/variable.h>

#include <exception>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>

#include "gpipe/base/threads.h"
#include "gpipe/failure.h"
#include "gpipe/libtorch/saved_tensors.h"
#include "gpipe/runtime/autograd/gradients.h"
#include "gpipe/runtime/autograd/graph.h"
#include "gpipe/runtime/cell/layer.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/device/copier.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/device/test_hooks.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/schedule/validate.h"

namespace gpipe::internal {

std::set<std::pair<int64_t, int64_t>> cells_with(
    const Schedule& schedule, ActionKind kind,
    const std::vector<Partition>& partitions) {
  std::set<std::pair<int64_t, int64_t>> cells;
  for (const auto& rank : schedule.ranks) {
    for (const Action& action : rank) {
      if (action.kind == kind && !partitions[action.stage].remote) {
        cells.emplace(action.stage, action.microbatch);
      }
    }
  }
  return cells;
}

bool has_backward(const Schedule& schedule) {
  return has_kind(schedule, ActionKind::kBackward) ||
         has_kind(schedule, ActionKind::kBackwardInput);
}

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
  if (!has_backward(schedule) || has_kind(schedule, ActionKind::kRecompute)) {
    return schedule;
  }
  const int64_t checkpointed =
      checkpointed_microbatches(checkpoint, num_microbatches(schedule));
  return with_recompute(schedule, [&](int i) { return i < checkpointed; });
}

namespace {

// Returns the rows of each micro-batch of a whole `batch`. Throws
// c10::ValueError if there are fewer rows than micro-batches.
std::vector<int64_t> rows_of_pieces(int64_t rows, int64_t microbatches,
                                    const char* what) {
  // evaluate() runs a mini-batch without rows as one micro-batch.
  TORCH_CHECK_VALUE(
      rows >= microbatches || microbatches == 1, "the schedule has ",
      microbatches, " micro-batches, but the ", what, " has ", rows,
      rows == 1 ? " row" : " rows",
      "; give at least one row for each micro-batch, or a schedule of fewer "
      "micro-batches");
  return rows == 0 ? std::vector<int64_t>(microbatches)
                   : split_rows(rows, microbatches);
}

// Throws c10::ValueError unless a split `batch` has as many parts as the
// schedule has micro-batches.
void check_parts(const Batch& batch, int64_t microbatches, const char* what) {
  TORCH_CHECK_VALUE(batch.parts() == microbatches, "the schedule has ",
                    microbatches, " micro-batches, but the ", what, " has ",
                    batch.parts(),
                    " parts; give one part for each micro-batch, or a schedule "
                    "of ",
                    batch.parts(), " micro-batches");
}

// Throws c10::ValueError if a tensor of `target` requires grad.
void check_constant(const Batch& target) {
  for (const Value& value : target.values()) {
    for (const at::Tensor& tensor : value.tensors()) {
      TORCH_CHECK_VALUE(
          !tensor.defined() || !tensor.requires_grad(),
          "the target requires grad, but train_step() computes no gradients of "
          "targets; pass target.detach(). To train what computes the target, "
          "use forward(), the loss and backward()");
    }
  }
}

// Returns the share of `rows` in `all` rows; 0 if there are none.
double share_of(int64_t rows, int64_t all) {
  return all == 0 ? 0 : static_cast<double>(rows) / static_cast<double>(all);
}

// Brings a target, or a part of it, to `device`. The caller may change it after
// this. `copier`: that of the device's partition, whose worker has no work.
Value bring_target(Value target, const c10::Device& device, Copier& copier) {
  for (at::Tensor& each : target.tensors()) {
    if (!each.defined()) continue;
    // The current stream still has the previous step, for which the host would
    // wait. A CPU reads the other copy at once.
    each = is_read_late(each)
               ? copier.to_device(each, Event())
               : each.to(device, /*non_blocking=*/!device.is_cpu());
  }
  return target;
}

// Returns the sizes of each tensor of `value` as a text.
std::vector<std::string> sizes_of(const Value& value) {
  std::vector<std::string> sizes;
  for (const at::Tensor& each : value.tensors()) {
    sizes.push_back(each.defined() ? c10::str(each.sizes()) : "(undefined)");
  }
  return sizes;
}

// Throws c10::ValueError unless each element of `target` has `rows` rows: those
// of the input, or, if that is on another rank, those of the first element.
void check_target(const Value& target, int64_t rows, bool has_input) {
  const std::string of_input =
      has_input ? c10::str("of the input's ", rows) : "row of the input";
  const std::vector<std::string> sizes = sizes_of(target);
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    const at::Tensor& each = target.tensors()[k];
    if (!each.defined() || (each.dim() > 0 && each.size(0) == rows)) continue;
    const bool is_one = target.kind() == Value::Kind::kTensor;
    TORCH_CHECK_VALUE(
        false, "the target must have a row for each ", of_input,
        " in dimension 0, but ",
        is_one ? "it has the sizes " + sizes[k]
        : has_input
            ? c10::str("its element ", k, " has the sizes ", sizes[k])
            : c10::str("its elements have the sizes ", c10::Join(", ", sizes)));
  }
}

// Splits `target` into the rows of the micro-batches.
std::vector<Value> split_target(const Value& target, int64_t chunks,
                                const std::vector<int64_t>& rows) {
  // Not by scatter(), whose pieces a loss could not change in place.
  std::vector<Value> pieces(chunks, target);
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

void TrainStep::give_input(const Batch& input) {
  if (input.split()) {
    check_parts(input, microbatches_, "input");
    batch_.emplace(input, std::vector<int64_t>(), Unsplit(), with_backward_);
    split_outputs_ = true;
  } else {
    batch_.emplace(input,
                   rows_of_pieces(rows_of(input.whole(), stages_.unsplit),
                                  microbatches_, "input"),
                   stages_.unsplit, with_backward_);
    stages_.warn_of_split_time(*batch_);
  }
  rows_ = batch_->rows();
}

void TrainStep::give_target(const Batch& target, const LossFunction& loss) {
  loss_ = &loss;
  target_split_ = target.split();
  TORCH_CHECK_VALUE(!batch_ || batch_->split() == target_split_, "the input ",
                    target_split_ ? "is one value" : "is given as Microbatches",
                    ", but the target ",
                    target_split_ ? "is given as Microbatches" : "is one value",
                    "; give both in the same way");
  if (with_backward_) check_constant(target);
  const c10::Device device = stages_.partitions.back().device;
  Copier& copier = stages_.copiers[stages_.rank_of_stage.back()];
  if (!target_split_) {
    if (!batch_) {
      const int64_t rows = rows_of(target.whole());
      if (rows > 0) rows_ = rows_of_pieces(rows, microbatches_, "target");
    }
    check_target(target.whole(),
                 std::accumulate(rows_.begin(), rows_.end(), int64_t{0}),
                 batch_.has_value());
    targets_ = split_target(bring_target(target.whole(), device, copier),
                            microbatches_, rows_);
    return;
  }
  check_parts(target, microbatches_, "target");
  rows_.clear();
  for (const Value& part : target.values()) {
    TORCH_CHECK_VALUE(
        loss.weighted() || has_row_dimension(part), "part ", targets_.size(),
        " of the target must have rows in dimension 0, because the mean that "
        "the loss function returns counts by them, but it is ",
        part.describe(), " with the sizes (", c10::Join(", ", sizes_of(part)),
        "); keep dimension 0, or return a WeightedLoss");
    rows_.push_back(rows_of(part));
    targets_.push_back(bring_target(part, device, copier));
  }
}

void TrainStep::start(std::optional<int64_t> all_rows) {
  if (with_backward_) accumulators_ = accumulators_of(stages_.partitions);
  note_grads();
  const auto recomputed =
      cells_with(schedule_, ActionKind::kRecompute, stages_.partitions);
  step_.emplace(
      stages_, microbatches_,
      [&](int64_t stage, int64_t microbatch) {
        return recomputed.count({stage, microbatch}) > 0;
      },
      before_);
  step_->rank_of_stage = rank_of_stage(schedule_);
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
  for (const auto& [stage, microbatch] :
       cells_with(schedule_, ActionKind::kOffload, stages_.partitions)) {
    if (!has_own_memory(stages_.partitions[stage].device)) continue;
    step_->cells[stage][microbatch].enable_offload(
        stages_.leaves_device(stage));
  }
  StepPass::Options options;
  options.check_finite = options_.check_finite();
  options.loss_weights = &weights_;
  options.order = options_.fixed_sum_order() ? SumOrder::kByMicrobatch
                                             : SumOrder::kAsTheyCome;
  norms_.emplace(stages_.partitions);
  pass_.emplace(stages_, *step_, std::move(options), remote_);
  if (batch_) pass_->begin_forward(batch_->activations(), batch_->leaf());
  if (loss_ && loss_->weighted()) {
    weights_.assign(microbatches_, 1);
  } else if (batch_ || target_split_) {
    const int64_t all = all_rows.value_or(
        std::accumulate(rows_.begin(), rows_.end(), int64_t{0}));
    for (int64_t i = 0; i < microbatches_; ++i) {
      weights_[i] = share_of(rows_[i], all);
    }
  }
}

void TrainStep::note_grads() {
  // Other ranks do not know whether the loss is weighted.
  if (!with_backward_ || (!remote_ && !(loss_ && loss_->weighted()))) return;
  additions_before_ = between_additions([this] {
    for (int64_t stage = 0; stage < stages_.size(); ++stage) {
      for (const Layer& layer : stages_.partitions[stage].layers) {
        for (const at::Tensor& each : layer.module.ptr()->parameters()) {
          if (!each.is_leaf()) continue;
          const at::Tensor& grad = each.grad();
          grads_before_.push_back({stage, each, grad, WatchedVersion(grad)});
        }
      }
    }
  });
}

void TrainStep::check_grads(const char* why) {
  if (!additions_before_) return;
  std::vector<const GradBefore*> changed;
  const std::optional<int64_t> additions = between_additions([&] {
    for (const GradBefore& each : grads_before_) {
      if (!each.parameter.grad().is_same(each.grad) ||
          each.version.is_changed()) {
        changed.push_back(&each);
      }
    }
  });
  // Other threads may train the same parameters.
  if (changed.empty() || additions != additions_before_) return;
  for (const GradBefore* each : changed) {
    each->parameter.mutable_grad() = each->grad;
  }
  const GradBefore& first = *changed.front();
  TORCH_CHECK(false, "the layers of partition ", first.stage,
              " have added to the gradient of ",
              stages_.describe_leaf(first.stage, first.parameter),
              " themselves, as by a backward() in the backward of a "
              "torch::autograd::Function; ",
              why,
              ". What was added in place to gradients from before the step "
              "stays. Use gpipe::checkpoint(), or torch::autograd::grad() and "
              "return the gradients of the parameters");
}

void TrainStep::set_rows(int64_t microbatch, int64_t rows, int64_t all_rows) {
  if (target_split_) return;
  TORCH_CHECK_VALUE(
      rows_.empty() || rows_[microbatch] == rows, "micro-batch ", microbatch,
      " of the input has ", rows, rows == 1 ? " row, of " : " rows, of ",
      all_rows, ", but the target's has ", rows_[microbatch],
      "; on the last rank, pass the target that belongs to the input of the "
      "first rank");
  input_rows_[microbatch] = rows;
  if (loss_ && loss_->weighted()) return;
  weights_[microbatch] = share_of(rows, all_rows);
}

StepResult TrainStep::result() {
  fault_point("gather", stages_.size() - 1);
  const c10::Device end = stages_.partitions.back().device;
  const c10::AutoGradMode no_graph(false);
  StepResult result;
  std::vector<Value> pieces;
  for (int64_t i = 0; i < microbatches_; ++i) {
    Value output = value_of(std::move(pass_->outputs()[i]), end);
    if (!loss_) {
      pieces.push_back(std::move(output));
      continue;
    }
    result.losses.push_back(std::move(output).unwrap<at::Tensor>());
    record_stream(heads_[i].weight, end);
    for (const auto& [name, value] : heads_[i].metrics) {
      record_stream(value, value.device());
    }
    if (!options_.outputs()) continue;
    for (const at::Tensor& each : heads_[i].output.tensors()) {
      record_stream(each, end);
    }
    pieces.push_back(std::move(heads_[i].output));
  }
  if (loss_) {
    // Other ranks get the numbers by a message.
    const bool reads = remote_ != nullptr;
    totals_ = loss_->weighted() ? add_up_weighted(result.losses, heads_, reads)
                                : add_up_means(result.losses, weights_, reads);
  }
  if (pieces.empty()) return result;
  result.outputs.emplace();
  result.split = split_outputs_;
  if (split_outputs_) {
    for (Value& piece : pieces) {
      result.outputs->push_back(to_any_value(std::move(piece)));
    }
  } else {
    result.outputs->push_back(to_any_value(gather(pieces)));
    warn_of_other_rows(pieces, batch_ ? batch_->rows() : input_rows_);
  }
  return result;
}

std::vector<SharedLeaf>& TrainStep::leaf_grads() {
  if (!leaf_grads_) {
    std::vector<SharedLeaf> leaves = step_->shared_leaves();
    std::vector<at::Tensor> grads = pass_->take_leaf_grads(leaves);
    for (std::size_t k = 0; k < leaves.size(); ++k) {
      leaves[k].grad = std::move(grads[k]);
    }
    leaf_grads_ = std::move(leaves);
  }
  return *leaf_grads_;
}

void TrainStep::check_sums() {
  if (!options_.check_finite() || !with_backward_) return;
  NonFiniteGradients non_finite;
  for (const SharedLeaf& each : leaf_grads()) {
    non_finite.watch(each.grad, [this, &each]() -> std::string {
      if (each.places.empty()) {
        return "a parameter that only other replicas use";
      }
      return stages_.describe_leaf(each.places.front().first, each.tensor);
    });
  }
  non_finite.check(", in the sum over all micro-batches");
}

void TrainStep::finish() {
  if (remote_ && remote_->takes_gradients()) {
    check_grads("replicas do not add such a gradient up");
  }
  norms_->prepare();
  if (with_backward_) leaf_grads();
}

void TrainStep::divide_gradients(double weight) {
  if (!with_backward_) return;
  check_grads("the step cannot divide it by the weight of a WeightedLoss");
  for (SharedLeaf& each : leaf_grads()) {
    if (each.grad.defined()) each.grad = divide(std::move(each.grad), weight);
  }
  divisor_ = weight;
}

void TrainStep::accumulate(const std::function<void()>& unlock) {
  norms_->write();
  if (with_backward_) {
    fault_point("accumulate");
    std::vector<torch::autograd::Edge> edges;
    std::vector<at::Tensor> grads;
    for (SharedLeaf& each : leaf_grads()) {
      edges.push_back(torch::autograd::impl::gradient_edge(
          each.target.defined() ? each.target : each.tensor));
      grads.push_back(std::move(each.grad));
    }
    leaf_grads_->clear();
    if (batch_) {
      for (auto& [tensor, element] : batch_->wanted()) {
        at::Tensor grad = element.join(pass_->input_grads());
        if (grad.defined() && divisor_)
          grad = divide(std::move(grad), *divisor_);
        // An input on the CPU has been copied to the first device.
        if (grad.defined()) grad = grad.to(tensor.device());
        edges.push_back(torch::autograd::impl::gradient_edge(tensor));
        grads.push_back(std::move(grad));
      }
    }
    separate(grads);
    // Hooks may release the memory.
    grads_before_.clear();
    // It uses the copiers of the pipeline until its end.
    pass_.reset();
    unlock();
    gpipe::internal::accumulate(std::move(edges), std::move(grads));
  }
  norms_->keep();
  step_->seed.keep();
}

namespace {

// One training step. The functions are called in the order in which they stand
// here.
class Training {
 public:
  Training(Stages& stages, Executor& executor, const StepArguments& given,
           const StepMode& mode, StepPeers& peers)
      : stages_(stages),
        executor_(executor),
        given_(given),
        mode_(mode),
        peers_(peers),
        first_here_(!stages.partitions.front().remote),
        last_here_(!stages.partitions.back().remote) {}

  void begin() {
    const std::optional<int64_t> all_rows = peers_.begin(
        given_, mode_, [this]() -> TrainStep& { return prepare(); });
    outside_schedule(at_partition(0, Phase::kScatter),
                     [&] { step_->start(all_rows); });
  }

  void run() {
    if (given_.options.timeline()) {
      recording_.emplace(executor_.devices(), given_.options.memory());
    }
    Recording* const recording = recording_ ? &*recording_ : nullptr;
    peers_.connect(*step_, recording);
    executor_.run(*schedule_, step_->pass(), recording);
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
    schedule_ = &peers_.checked_schedule(
        given_.schedule ? *given_.schedule : mode_.schedule, mode_.checkpoint);
    step_.emplace(stages_, *schedule_, given_.options, peers_.remote(),
                  peers_.before(num_microbatches(*schedule_)));
    outside_schedule(at_partition(0, Phase::kScatter), [this] {
      if (first_here_) step_->give_input(given_.input);
      // Both are given in the same way where they are read.
      const bool has_target = last_here_ && given_.loss;
      if (has_target ? given_.target.split() : given_.input.split()) {
        step_->keep_outputs_split();
      }
      if (has_target) {
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
                           : executor_.outside_schedule(place, std::move(part));
  }

  Stages& stages_;
  Executor& executor_;
  const StepArguments& given_;
  const StepMode& mode_;
  StepPeers& peers_;
  const bool first_here_, last_here_;
  const Schedule* schedule_ = nullptr;  // as it is run
  std::optional<TrainStep> step_;
  std::optional<Recording> recording_;
};

}  // namespace

StepResult train(Stages& stages, Executor& executor, const StepArguments& given,
                 StepPeers& peers) {
  const auto enter = [&] {
    return executor.enter(given.schedule && has_backward(*given.schedule));
  };
  auto running = enter();
  executor.set_failure(std::nullopt);
  const WorkScope work;
  peers.open();
  StepMode mode;
  Training training(stages, executor, given, mode, peers);
  try {
    mode = given.mode();
    training.begin();
    training.run();
    return training.end([&] {
      mode.scope.reset();
      running.unlock();
    });
  } catch (...) {
    // Whatever fail() throws, the lock is taken again before the destructors
    // take BatchNorm statistics back, which another step may be reading.
    const auto lock_again = c10::make_scope_exit([&] {
      try {
        const WaitScope wait;  // as enter() above, which is not counted as work
        if (!running.owns_lock()) running = enter();
      } catch (const std::exception&) {
        // A hook has called fork(): there is no other step in this process.
      }
    });
    peers.fail(running.owns_lock());
    throw;
  }
}

}  // namespace gpipe::internal
