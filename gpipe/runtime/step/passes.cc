#include "gpipe/runtime/step/passes.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "gpipe/libtorch/interceptor.h"
#include "gpipe/runtime/cell/phase_scope.h"
#include "gpipe/runtime/device/test_hooks.h"

namespace gpipe::internal {
namespace {

Phase backward_phase(ActionKind kind) {
  switch (kind) {
    case ActionKind::kRecompute:
      return Phase::kRecomputing;
    case ActionKind::kOffload:
      return Phase::kOffload;
    case ActionKind::kReload:
      return Phase::kReload;
    default:
      return Phase::kBackward;
  }
}

// Returns gradients as the content of a delivery.
std::vector<Activation> to_activations(std::vector<at::Tensor> grads) {
  std::vector<Activation> content;
  for (at::Tensor& grad : grads) content.push_back({std::move(grad)});
  return content;
}

}  // namespace

CellPass::CellPass(bool backward, Stages& stages, Step& step,
                   RemoteStages* remote)
    : stages_(stages),
      step_(step),
      remote_(remote),
      backward_(backward),
      inboxes_(stages.partitions.size()),
      unsplit_copies_(stages.partitions.size()) {
  for (std::size_t j = 0; j < inboxes_.size(); ++j) {
    const Partition& partition = stages.partitions[j];
    const std::size_t skips =
        (backward ? partition.exports : partition.imports).size();
    for (int64_t i = 0; i < step.microbatches(); ++i) {
      Inbox& inbox = inboxes_[j].emplace_back();
      inbox.missing = 1 + skips;
      inbox.content.skips.resize(skips);
      inbox.skip_ready.resize(skips);
    }
  }
}

void CellPass::deliver(const StageEdge& edge, Value::Kind kind,
                       std::vector<Activation> content, const Event& ready) {
  Inbox& inbox = inboxes_[edge.to][edge.microbatch];
  if (edge.link < 0) {
    inbox.content.kind = kind;
    inbox.content.boundary = std::move(content);
    inbox.boundary_ready = ready;
  } else {
    const SkipLink& link = stages_.links[edge.link];
    const int64_t k = backward_ ? link.exported : link.imported;
    inbox.content.skips[k] = std::move(content.front());
    inbox.skip_ready[k] = ready;
  }
  inbox.missing.fetch_sub(1, std::memory_order_acq_rel);
}

bool CellPass::arrived(const Action& action) {
  const bool there =
      inbox_of(action).missing.load(std::memory_order_acquire) == 0;
  if (!remote_) return there;
  const int64_t from = backward_ ? action.stage + 1 : action.stage - 1;
  remote_->waits_for(there ? -1 : from);
  if (!there) remote_->check();
  return there;
}

void CellPass::bring(const Action& action, CopyLog* log) {
  const int64_t j = action.stage;
  const Partition& partition = stages_.partitions[j];
  Inbox& inbox = inbox_of(action);
  const auto made_by = [&](int64_t stage) {
    if (!log) return;
    log->made_by = {static_cast<int>(stage),
                    backward_ ? ActionKind::kBackward : ActionKind::kForward,
                    action.microbatch};
  };
  made_by(backward_ ? j + 1 : j - 1);
  for (Activation& each : inbox.content.boundary) {
    bring(j, each, inbox.boundary_ready, log);
  }
  for (std::size_t k = 0; k < inbox.content.skips.size(); ++k) {
    made_by(backward_ ? partition.exports[k].to : partition.imports[k].from);
    bring(j, inbox.content.skips[k], inbox.skip_ready[k], log);
  }
}

void CellPass::bring(int64_t stage, Activation& input, const Event& ready,
                     CopyLog* log) {
  Copier& copier = step_.copier_of(stage);
  at::Tensor& tensor = input.tensor;
  const bool stays =
      input.unsplit < 0 || tensor.device() == stages_.partitions[stage].device;
  if (stays) {
    tensor = copier.to_device(tensor, ready, log);
    return;
  }
  UnsplitCopy& known = unsplit_copies_[stage][input.unsplit];
  // The sources of all micro-batches are aliases of one tensor.
  if (!known.copy.defined() || !tensor.is_alias_of(known.source)) {
    known = {tensor, copier.to_device(tensor, ready, log)};
  }
  tensor = known.copy;
}

Activations CellPass::take_input(const Action& action) {
  return std::move(inbox_of(action).content);
}

Activations CellPass::pass_on(const Action& action, Activations output) {
  const int64_t j = action.stage;
  const Event made = Event::record(stages_.partitions[j].device);
  std::vector<StageOutput> leaving;
  const auto pass = [&](int64_t to, int64_t link, Value::Kind kind,
                        std::vector<Activation> content) {
    const StageEdge edge{backward_, j, to, link, action.microbatch};
    if (stages_.partitions[to].remote) {
      leaving.push_back({edge, kind, std::move(content)});
    } else {
      deliver(edge, kind, std::move(content), made);
    }
  };
  for (std::size_t k = 0; k < stages_.links.size(); ++k) {
    const SkipLink& link = stages_.links[k];
    if ((backward_ ? link.to : link.from) != j) continue;
    pass(backward_ ? link.from : link.to, static_cast<int64_t>(k),
         backward_ ? Value::Kind::kVector : Value::Kind::kTensor,
         {std::move(output.skips[backward_ ? link.imported : link.exported])});
  }
  output.skips.clear();
  const int64_t next = backward_ ? j - 1 : j + 1;
  if (next >= 0 && next < stages_.size()) {
    pass(next, -1, output.kind, std::exchange(output.boundary, {}));
  }
  if (!leaving.empty()) remote_->send(std::move(leaving), made);
  return output;
}

ForwardPass::ForwardPass(Stages& stages, Step& step,
                         std::vector<Activations> inputs, bool leaf_input,
                         RemoteStages* remote)
    : CellPass(/*backward=*/false, stages, step, remote),
      leaf_input_(leaf_input),
      outputs_(step.microbatches()) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    deliver({/*backward=*/false, -1, 0, -1, static_cast<int64_t>(i)},
            inputs[i].kind, std::move(inputs[i].boundary), Event());
  }
}

Phase ForwardPass::phase_of(const Action& action) const {
  return step_.cells[action.stage][action.microbatch].checkpointed()
             ? Phase::kCheckpointing
             : Phase::kForward;
}

void ForwardPass::fetch(const Action& action, CopyLog* log) {
  const PhaseScope phase(phase_of(action), action.microbatch);
  fault_point("copy-in", action.stage, action.microbatch);
  bring(action, log);
}

void ForwardPass::perform(const Action& action) {
  const int64_t j = action.stage, i = action.microbatch;
  Cell& cell = step_.cells[j][i];
  const PhaseScope phase(phase_of(action), i, &cell.layer_at_work());
  fault_point("forward", j, i);
  Activations output =
      cell.forward(take_input(action), step_.seed, j == 0 && leaf_input_);
  step_.number_leaves(j, i);
  fault_point("copy-out", j, i);
  output = pass_on(action, std::move(output));
  if (j + 1 == stages_.size()) outputs_[i] = std::move(output);
}

Failure ForwardPass::place(const Action& action) {
  return step_.failure_at(action, phase_of(action));
}

BackwardPass::BackwardPass(Stages& stages, Step& step, Options options,
                           RemoteStages* remote)
    : CellPass(/*backward=*/true, stages, step, remote),
      options_(std::move(options)),
      offers_gradients_(remote && remote->takes_gradients()),
      input_grads_(step.microbatches()) {
  if (!options_.input_wanted && !options_.leaf_wanted.empty()) {
    while (first_wanted_ < stages.size()) {
      const auto& wanted = options_.leaf_wanted[first_wanted_];
      if (std::ranges::find(wanted, true) != wanted.end()) break;
      ++first_wanted_;
    }
  }
  for (std::size_t j = 0; j < stages.partitions.size(); ++j) {
    sums_.emplace_back(options_.order, step.microbatches());
  }
}

BackwardPass::~BackwardPass() {
  for (Copier& copier : stages_.copiers) {
    try {
      copier.finish();
    } catch (...) {
      // The device has failed, and the step ends with that error.
    }
  }
}

void BackwardPass::begin(int64_t microbatch, std::vector<at::Tensor> grads) {
  deliver(
      {/*backward=*/true, stages_.size(), stages_.size() - 1, -1, microbatch},
      Value::Kind::kVector, to_activations(std::move(grads)), Event());
}

bool BackwardPass::ready(const Action& action) {
  // The weight part follows the input part on the same worker.
  return action.kind == ActionKind::kRecompute ||
         action.kind == ActionKind::kBackwardWeight ||
         !is_compute(action.kind) || action.stage < first_wanted_ ||
         arrived(action);
}

void BackwardPass::fetch(const Action& action, CopyLog* log) {
  if (action.stage < first_wanted_) return;
  if (!is_compute(action.kind)) return copy_kept(action, log);
  if (!begins_backward(action.kind)) return;
  const PhaseScope phase(Phase::kBackward, action.microbatch);
  fault_point("gradient copy-in", action.stage, action.microbatch);
  bring(action, log);
}

void BackwardPass::copy_kept(const Action& action, CopyLog* log) {
  const int64_t j = action.stage, i = action.microbatch;
  const bool away = action.kind == ActionKind::kOffload;
  const PhaseScope phase(backward_phase(action.kind), i);
  fault_point(away ? "offload" : "reload", j, i);
  if (!has_own_memory(stages_.partitions[j].device)) return;
  const c10::AutoGradMode no_graph(false);
  Copier::Times times;
  Cell& cell = step_.cells[j][i];
  Copier& copier = step_.copier_of(j);
  if (away) {
    cell.offload(copier, log ? &times : nullptr);
  } else {
    cell.reload(copier, log ? &times : nullptr);
  }
  if (log) {
    log->host_copies.push_back({action, log->place, times.start, times.end});
  }
}

void BackwardPass::perform(const Action& action) {
  if (!is_compute(action.kind)) return;  // see fetch()
  const int64_t j = action.stage, i = action.microbatch;
  Cell& cell = step_.cells[j][i];
  const bool last = action.kind == ActionKind::kBackward ||
                    action.kind == ActionKind::kBackwardWeight;
  const bool release = last && !options_.keep_graph;
  if (j < first_wanted_) {
    if (release) cell.release();
    return;
  }
  if (action.kind == ActionKind::kRecompute) {
    // Same thread-local state (grad mode, autocast) as in the forward.
    at::ThreadLocalStateGuard as_in_forward(step_.caller);
    const PhaseScope phase(Phase::kRecomputing, i, &cell.layer_at_work());
    fault_point("recompute", j, i);
    cell.recompute(step_.seed);
    return;
  }

  const PhaseScope phase(Phase::kBackward, i, &cell.layer_at_work());
  fault_point(action.kind == ActionKind::kBackwardWeight ? "weight gradient"
                                                         : "backward",
              j, i);
  backward(action);
  if (last) sums_[j].finish(i);
  if (release) cell.release();
  if (last && offers_gradients_ && sums_[j].complete()) complete(j);
}

void BackwardPass::backward(const Action& action) {
  const int64_t j = action.stage, i = action.microbatch;
  Cell& cell = step_.cells[j][i];
  // A backward in two parts may add to a leaf more than once.
  const bool each_is_complete = offers_gradients_ &&
                                action.kind == ActionKind::kBackward &&
                                sums_[j].last(i);
  NonFiniteGradients non_finite;
  const LeafSink sink = [&](std::size_t leaf, at::Tensor grad) {
    fault_point("gradient sum", j, i);
    const auto number = cell.leaf_numbers()[leaf];
    if (options_.check_finite) {
      non_finite.watch(grad, [this, j, &tensor = cell.leaves()[leaf]] {
        return stages_.describe_leaf(j, tensor);
      });
    }
    sums_[j].add(i, number, std::move(grad));
    if (each_is_complete) complete(j, number);
  };
  Activations back = run_cell(action, sink);
  if (options_.check_finite) {
    watch(j, back, non_finite);
    non_finite.check();
  }
  if (action.kind == ActionKind::kBackwardWeight) return;
  fault_point("gradient copy-out", j, i);
  for (Activation& each : pass_on(action, std::move(back)).boundary) {
    input_grads_[i].push_back(std::move(each.tensor));
  }
}

Activations BackwardPass::run_cell(const Action& action, const LeafSink& sink) {
  const int64_t j = action.stage;
  Cell& cell = step_.cells[j][action.microbatch];
  try {
    if (action.kind == ActionKind::kBackwardWeight) {
      cell.backward_weight(sink);
      return {};
    }
    if (action.kind == ActionKind::kBackwardInput) {
      return cell.backward_input(take_input(action));
    }
    const bool want_input = j > first_wanted_ || options_.input_wanted;
    static const std::vector<bool> kAll;
    return cell.backward(
        take_input(action), options_.keep_graph, want_input,
        options_.leaf_wanted.empty() ? kAll : options_.leaf_wanted[j], sink);
  } catch (const c10::Error& error) {
    if (error.msg().find(torch::autograd::ERR_BACKWARD_TWICE) ==
        std::string::npos) {
      throw;
    }
    const std::string captured = step_.describe_captured(j);
    if (captured.empty()) throw;
    TORCH_CHECK(false, captured,
                ", whose graph autograd has freed after an earlier backward. "
                "Each micro-batch of each step runs that graph again. Compute "
                "the tensor in the layer, or make it a leaf "
                "(detach().requires_grad_())");
  }
}

void BackwardPass::watch(int64_t j, const Activations& back,
                         NonFiniteGradients& non_finite) const {
  const Partition& partition = stages_.partitions[j];
  for (const Activation& each : back.boundary) {
    non_finite.watch(each.tensor, [&partition] {
      return c10::str("the input of partition ", partition.index);
    });
  }
  for (std::size_t k = 0; k < back.skips.size(); ++k) {
    non_finite.watch(back.skips[k].tensor, [&partition, k] {
      return c10::str("the skip tensor '", partition.imports[k].key.name,
                      "' that enters partition ", partition.index);
    });
  }
}

void BackwardPass::complete(int64_t j, int64_t leaf) {
  const at::Tensor& tensor = step_.leaves[j].list[leaf];
  // All forwards have run before the last backward of a stage.
  if (step_.is_shared(j, tensor)) return;
  at::Tensor grad = sums_[j].take(leaf);
  if (!grad.defined()) return;
  remote_->complete(j, tensor, grad,
                    Event::record(stages_.partitions[j].device));
  sums_[j].add(leaf, std::move(grad));  // undefined if it was taken
}

void BackwardPass::complete(int64_t j) {
  const auto leaves = static_cast<int64_t>(step_.leaves[j].list.size());
  for (int64_t leaf = 0; leaf < leaves; ++leaf) complete(j, leaf);
  remote_->complete(j);
}

Failure BackwardPass::place(const Action& action) {
  return step_.failure_at(action, backward_phase(action.kind));
}

std::vector<at::Tensor> BackwardPass::take_leaf_grads(
    const std::vector<SharedLeaf>& leaves) {
  fault_point("gradient total");
  std::vector<at::Tensor> grads;
  for (const SharedLeaf& leaf : leaves) {
    GradSum over_partitions;
    for (auto place = leaf.places.rbegin(); place != leaf.places.rend();
         ++place) {
      at::Tensor grad = sums_[place->first].take(place->second);
      // The sum was computed on the partition's stream. It is used and freed on
      // the caller's.
      if (grad.defined()) record_stream(grad, grad.device());
      over_partitions.add(0, std::move(grad));
    }
    grads.push_back(over_partitions.take(0));
  }
  return grads;
}

TrainPass::TrainPass(Stages& stages, Step& step,
                     std::vector<Activations> inputs, bool leaf_input,
                     const std::vector<double>& weights,
                     BackwardPass::Options options, RemoteStages* remote)
    : last_stage_(stages.size() - 1),
      weights_(weights),
      forward_(stages, step, std::move(inputs), leaf_input, remote),
      backward_(stages, step, std::move(options), remote) {}

bool TrainPass::ready(const Action& action) {
  // The last stage starts its backward from its own forward.
  const bool ends_and_begins =
      action.kind != ActionKind::kForward && action.stage == last_stage_;
  return ends_and_begins || half_of(action).ready(action);
}

bool TrainPass::begins_backward(const Action& action) const {
  return action.stage == last_stage_ && internal::begins_backward(action.kind);
}

void TrainPass::fetch(const Action& action, CopyLog* log) {
  // The gradient of the loss does not exist yet, and comes from no other
  // device.
  if (!begins_backward(action)) half_of(action).fetch(action, log);
}

void TrainPass::perform(const Action& action) {
  if (begins_backward(action)) {
    begin_backward(action.microbatch);
    half_of(action).fetch(action, nullptr);
  }
  half_of(action).perform(action);
}

void TrainPass::begin_backward(int64_t microbatch) {
  const Activation& loss = forward_.outputs()[microbatch].boundary[0];
  TORCH_CHECK(loss.requires_grad, "the loss of micro-batch ", microbatch,
              " does not require grad: it depends on no parameter or input "
              "that does. Use a forward-only schedule to run without backward");
  const c10::AutoGradMode no_graph(false);
  backward_.begin(microbatch,
                  {at::full_like(loss.tensor, weights_[microbatch])});
}

Failure TrainPass::place(const Action& action) {
  return half_of(action).place(action);
}

StageWorkers::StageWorkers(std::vector<Partition> partitions, Unsplit unsplit,
                           std::vector<int> rank_of_stage,
                           std::vector<c10::Device> devices, int threads,
                           bool one_at_a_time, int other_workers)
    : stages_(std::move(partitions), std::move(rank_of_stage)),
      executor_(std::move(devices), threads, one_at_a_time, other_workers) {
  check_interceptors(Interceptor::kCell);
  stages_.unsplit = std::move(unsplit);
}

std::unique_lock<std::mutex> StageWorkers::enter() {
  executor_.check_caller();
  return std::unique_lock<std::mutex>(running_);
}

void StageWorkers::run(const Plan& plan, Actor& actor, Recording* recording) {
  auto error = executor_.run(plan, actor, recording);
  set_failure(error ? std::make_optional(std::move(error->failure))
                    : std::nullopt);
  if (error) std::rethrow_exception(error->exception);
}

void StageWorkers::set_failure(std::optional<Failure> failure) {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  failure_ = std::move(failure);
}

std::optional<Failure> StageWorkers::last_failure() const {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_;
}

}  // namespace gpipe::internal
