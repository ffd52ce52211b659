#include "gpipe/runtime/step/passes.h"

#include <ATen/Functions.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <utility>

#include "gpipe/runtime/cell/phase_scope.h"
#include "gpipe/runtime/device/test_hooks.h"

namespace gpipe::internal {
namespace {

bool is_backward(const Action& action) {
  return action.kind != ActionKind::kForward;
}

}  // namespace

StepPass::StepPass(Stages& stages, Step& step, Options options,
                   RemoteStages* remote)
    : stages_(stages),
      step_(step),
      options_(std::move(options)),
      remote_(remote),
      offers_gradients_(remote && remote->takes_gradients()),
      forward_(make_inboxes(/*backward=*/false)),
      backward_(make_inboxes(/*backward=*/true)),
      unsplit_copies_(stages.partitions.size()),
      link_parameters_(stages.links.size()),
      versions_(stages.partitions.size()),
      outputs_(step.microbatches()),
      input_grads_(step.microbatches()) {
  if (!options_.input_wanted && !options_.leaf_wanted.empty()) {
    while (first_wanted_ < stages.size()) {
      const auto& wanted = options_.leaf_wanted[first_wanted_];
      if (std::ranges::find(wanted, true) != wanted.end()) break;
      ++first_wanted_;
    }
  }
  for (int64_t j = 0; j < stages.size(); ++j) {
    sums_.emplace_back(options_.order, step.microbatches());
  }
  for (const SkipRoute& link : stages.links) {
    if (!versions_[link.from].empty()) continue;
    const auto& all = stages.partitions[link.from].modules.parameters();
    versions_[link.from] = std::vector<WatchedVersion>(all.begin(), all.end());
  }
}

StepPass::~StepPass() {
  for (Copier& copier : stages_.copiers) {
    try {
      copier.finish();
    } catch (...) {
      // The device has failed, and the step ends with that error.
    }
  }
}

StepPass::Inboxes StepPass::make_inboxes(bool backward) const {
  Inboxes inboxes(stages_.partitions.size());
  for (std::size_t j = 0; j < inboxes.size(); ++j) {
    const Partition& partition = stages_.partitions[j];
    const std::size_t skips =
        (backward ? partition.exports : partition.imports).size();
    for (int64_t i = 0; i < step_.microbatches(); ++i) {
      Inbox& inbox = inboxes[j].emplace_back();
      inbox.missing = 1 + skips;
      inbox.content.skips.resize(skips);
      inbox.skip_ready.resize(skips);
    }
  }
  return inboxes;
}

StepPass::Inbox& StepPass::inbox_of(const Action& action) {
  Inboxes& inboxes = is_backward(action) ? backward_ : forward_;
  return inboxes[action.stage][action.microbatch];
}

void StepPass::begin_forward(std::vector<Activations> inputs, bool leaf_input) {
  leaf_input_ = leaf_input;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    deliver({/*backward=*/false, -1, 0, -1, static_cast<int64_t>(i)},
            inputs[i].kind, std::move(inputs[i].boundary), Event());
  }
}

void StepPass::begin_backward(int64_t microbatch,
                              std::vector<at::Tensor> grads) {
  std::vector<Activation> content;
  for (at::Tensor& grad : grads) content.push_back({std::move(grad)});
  deliver(
      {/*backward=*/true, stages_.size(), stages_.size() - 1, -1, microbatch},
      Value::Kind::kVector, std::move(content), Event());
}

void StepPass::deliver(const StageEdge& edge, Value::Kind kind,
                       std::vector<Activation> content, const Event& ready) {
  Inboxes& inboxes = edge.backward ? backward_ : forward_;
  Inbox& inbox = inboxes[edge.to][edge.microbatch];
  if (edge.link < 0) {
    inbox.content.kind = kind;
    inbox.content.boundary = std::move(content);
    inbox.boundary_ready = ready;
  } else {
    const SkipRoute& link = stages_.links[edge.link];
    const int64_t k = edge.backward ? link.exported : link.imported;
    inbox.content.skips[k] = std::move(content.front());
    inbox.skip_ready[k] = ready;
  }
  inbox.missing.fetch_sub(1, std::memory_order_acq_rel);
}

bool StepPass::arrived(const Action& action) {
  const bool there =
      inbox_of(action).missing.load(std::memory_order_acquire) == 0;
  if (!remote_) return there;
  const int from = is_backward(action) ? action.stage + 1 : action.stage - 1;
  remote_->waits_for(there ? -1 : from);
  return there;
}

void StepPass::bring(const Action& action, CopyLog* log) {
  const int64_t j = action.stage;
  const bool backward = is_backward(action);
  const PhaseScope phase(phase_of(action), action.microbatch);
  fault_point(backward ? "gradient copy-in" : "copy-in", j, action.microbatch);
  const Partition& partition = stages_.partitions[j];
  Inbox& inbox = inbox_of(action);
  const auto made_by = [&](int64_t stage) {
    if (!log) return;
    log->made_by = {static_cast<int>(stage),
                    backward ? ActionKind::kBackward : ActionKind::kForward,
                    action.microbatch};
  };
  made_by(backward ? j + 1 : j - 1);
  for (Activation& each : inbox.content.boundary) {
    bring(j, each, inbox.boundary_ready, log);
  }
  for (std::size_t k = 0; k < inbox.content.skips.size(); ++k) {
    made_by(backward ? partition.exports[k].to : partition.imports[k].from);
    bring(j, inbox.content.skips[k], inbox.skip_ready[k], log);
  }
}

void StepPass::bring(int64_t stage, Activation& input, const Event& ready,
                     CopyLog* log) {
  Copier& copier = step_.copier_of(stage);
  at::Tensor& tensor = input.tensor;
  const bool stays = input.unsplit < 0 || !tensor.defined() ||
                     tensor.device() == stages_.partitions[stage].device;
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

void StepPass::mark_parameter(std::size_t link, Activation& skip) {
  if (skip.unsplit >= 0) return;
  LinkParameter& known = link_parameters_[link];
  if (!known.tensor) {
    known.tensor.emplace();
    const Partition& from = stages_.partitions[stages_.links[link].from];
    const std::vector<at::Tensor>& parameters = from.modules.parameters();
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      if (!is_same_view(parameters[k], skip.tensor)) continue;
      known.tensor = skip.tensor;
      known.version = versions_[stages_.links[link].from][k];
    }
  }
  if (!is_same_view(*known.tensor, skip.tensor)) return;
  if (known.version.is_changed()) {
    // The layers change it in each forward, as an Embedding with max_norm does.
    const c10::NoGradGuard no_grad;
    skip.tensor = skip.tensor.clone();
    return;
  }
  skip.unsplit = 2 * static_cast<int>(link) + 1;
  skip.shared = step_.microbatches() > 1;
}

Activations StepPass::pass_on(const Action& action, Activations output) {
  const int64_t j = action.stage;
  const bool backward = is_backward(action);
  for (std::size_t k = 0; k < stages_.links.size() && !backward; ++k) {
    const SkipRoute& link = stages_.links[k];
    if (link.from == j) mark_parameter(k, output.skips[link.exported]);
  }
  const Event made = Event::record(stages_.partitions[j].device);
  std::vector<StageOutput> leaving;
  const auto pass = [&](int64_t to, int64_t link, Value::Kind kind,
                        std::vector<Activation> content) {
    const StageEdge edge{backward, j, to, link, action.microbatch};
    if (stages_.partitions[to].remote) {
      leaving.push_back({edge, kind, std::move(content)});
    } else {
      deliver(edge, kind, std::move(content), made);
    }
  };
  for (std::size_t k = 0; k < stages_.links.size(); ++k) {
    const SkipRoute& link = stages_.links[k];
    if ((backward ? link.to : link.from) != j) continue;
    pass(backward ? link.from : link.to, static_cast<int64_t>(k),
         backward ? Value::Kind::kVector : Value::Kind::kTensor,
         {std::move(output.skips[backward ? link.imported : link.exported])});
  }
  output.skips.clear();
  const int64_t next = backward ? j - 1 : j + 1;
  if (next >= 0 && next < stages_.size()) {
    pass(next, -1, output.kind, std::exchange(output.boundary, {}));
  }
  if (!leaving.empty()) remote_->send(std::move(leaving), made);
  return output;
}

Phase StepPass::phase_of(const Action& action) const {
  switch (action.kind) {
    case ActionKind::kForward:
      return step_.cells[action.stage][action.microbatch].checkpointed()
                 ? Phase::kCheckpointing
                 : Phase::kForward;
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

Failure StepPass::place(const Action& action) {
  return step_.failure_at(action, phase_of(action));
}

bool StepPass::begins_at_loss(const Action& action) const {
  return options_.loss_weights && action.stage + 1 == stages_.size() &&
         begins_backward(action.kind);
}

bool StepPass::ready(const Action& action) {
  if (remote_) remote_->check();
  if (!is_compute(action.kind)) return true;
  if (!is_backward(action)) return arrived(action);
  // The weight part follows the input part on the same worker.
  return action.kind == ActionKind::kRecompute ||
         action.kind == ActionKind::kBackwardWeight ||
         action.stage < first_wanted_ || begins_at_loss(action) ||
         arrived(action);
}

void StepPass::fetch(const Action& action, CopyLog* log) {
  const bool backward = is_backward(action);
  if (backward && action.stage < first_wanted_) return;
  if (!is_compute(action.kind)) return copy_kept(action, log);
  // The gradient of the loss does not exist yet, and comes from no other
  // device.
  if (backward && (!begins_backward(action.kind) || begins_at_loss(action))) {
    return;
  }
  bring(action, log);
}

void StepPass::copy_kept(const Action& action, CopyLog* log) {
  const int64_t j = action.stage, i = action.microbatch;
  const bool away = action.kind == ActionKind::kOffload;
  const PhaseScope phase(phase_of(action), i);
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

void StepPass::perform(const Action& action) {
  if (!is_compute(action.kind)) return;  // see fetch()
  if (!is_backward(action)) return forward(action);
  const int64_t j = action.stage, i = action.microbatch;
  const bool last = action.kind == ActionKind::kBackward ||
                    action.kind == ActionKind::kBackwardWeight;
  const bool release = last && !options_.keep_graph;
  Cell& cell = step_.cells[j][i];
  if (j < first_wanted_) {
    if (release) cell.release();
    return;
  }
  if (action.kind == ActionKind::kRecompute) return recompute(action);
  if (begins_at_loss(action)) {
    begin_at_loss(i);
    bring(action, nullptr);
  }
  const PhaseScope phase(Phase::kBackward, i, &cell.layer_at_work());
  backward(action);
  if (last) sums_[j].finish(i);
  if (release) cell.release();
  if (last && offers_gradients_ && sums_[j].complete()) complete(j);
}

void StepPass::forward(const Action& action) {
  const int64_t j = action.stage, i = action.microbatch;
  Cell& cell = step_.cells[j][i];
  const PhaseScope phase(phase_of(action), i, &cell.layer_at_work());
  fault_point("forward", j, i);
  Activations output = cell.forward(std::move(inbox_of(action).content),
                                    step_.seed, j == 0 && leaf_input_);
  step_.number_leaves(j, i);
  fault_point("copy-out", j, i);
  output = pass_on(action, std::move(output));
  if (j + 1 == stages_.size()) outputs_[i] = std::move(output);
}

void StepPass::recompute(const Action& action) {
  Cell& cell = step_.cells[action.stage][action.microbatch];
  // Same thread-local state (grad mode, autocast) as in the forward.
  at::ThreadLocalStateGuard as_in_forward(step_.caller);
  const PhaseScope phase(Phase::kRecomputing, action.microbatch,
                         &cell.layer_at_work());
  fault_point("recompute", action.stage, action.microbatch);
  cell.recompute(step_.seed);
}

void StepPass::begin_at_loss(int64_t microbatch) {
  const Activation& loss = outputs_[microbatch].boundary[0];
  TORCH_CHECK(loss.requires_grad, "the loss of micro-batch ", microbatch,
              " does not require grad: it depends on no parameter or input "
              "that does. If it counts nothing, return a sum with a graph, "
              "such as output.sum() * 0. Use a forward-only schedule to run "
              "without backward");
  const c10::AutoGradMode no_graph(false);
  begin_backward(
      microbatch,
      {at::full_like(loss.tensor, (*options_.loss_weights)[microbatch])});
}

void StepPass::backward(const Action& action) {
  const int64_t j = action.stage, i = action.microbatch;
  Cell& cell = step_.cells[j][i];
  fault_point(action.kind == ActionKind::kBackwardWeight ? "weight gradient"
                                                         : "backward",
              j, i);
  // The caller cannot leave an autocast scope between forward and backward.
  // Operators that ran without autocast, or in float32, would be differentiated
  // in half precision; the others have gradients of their own type already.
  std::optional<c10::impl::ExcludeDispatchKeyGuard> no_autocast;
  if (options_.loss_weights) {
    no_autocast.emplace(c10::autocast_dispatch_keyset);
  }
  // A backward in two parts may add to a leaf more than once.
  const bool each_is_complete = offers_gradients_ &&
                                action.kind == ActionKind::kBackward &&
                                sums_[j].last(i);
  // The loss of a part without rows is NaN, and 0 * NaN is NaN.
  const bool counts_nothing = options_.loss_weights &&
                              j + 1 == stages_.size() &&
                              (*options_.loss_weights)[i] == 0;
  NonFiniteGradients non_finite;
  const LeafSink sink = [&](std::size_t leaf, at::Tensor grad) {
    fault_point("gradient sum", j, i);
    if (counts_nothing) grad = at::zeros_like(grad);
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
  for (auto* const list : {&back.boundary, &back.skips}) {
    for (Activation& each : *list) {
      if (counts_nothing && each.tensor.defined()) {
        each.tensor = at::zeros_like(each.tensor);
      }
    }
  }
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

Activations StepPass::run_cell(const Action& action, const LeafSink& sink) {
  const int64_t j = action.stage;
  Cell& cell = step_.cells[j][action.microbatch];
  try {
    if (action.kind == ActionKind::kBackwardWeight) {
      cell.backward_weight(sink);
      return {};
    }
    if (action.kind == ActionKind::kBackwardInput) {
      return cell.backward_input(std::move(inbox_of(action).content));
    }
    const bool want_input = j > first_wanted_ || options_.input_wanted;
    static const std::vector<bool> kAll;
    return cell.backward(
        std::move(inbox_of(action).content), options_.keep_graph, want_input,
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

void StepPass::watch(int64_t j, const Activations& back,
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

void StepPass::complete(int64_t j, int64_t leaf) {
  const at::Tensor& tensor = step_.leaves[j].list[leaf];
  // All forwards have run before the last backward of a stage.
  if (step_.is_shared(j, tensor)) return;
  at::Tensor grad = sums_[j].take(leaf);
  if (!grad.defined()) return;
  remote_->complete(j, tensor, grad,
                    Event::record(stages_.partitions[j].device));
  sums_[j].add(leaf, std::move(grad));  // undefined if it was taken
}

void StepPass::complete(int64_t j) {
  const auto leaves = static_cast<int64_t>(step_.leaves[j].list.size());
  for (int64_t leaf = 0; leaf < leaves; ++leaf) complete(j, leaf);
  remote_->complete(j);
}

std::vector<at::Tensor> StepPass::take_leaf_grads(
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

}  // namespace gpipe::internal
