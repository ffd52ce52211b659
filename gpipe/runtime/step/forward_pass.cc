#include "gpipe/runtime/step/forward_pass.h"

#include <utility>

#include "gpipe/runtime/cell/phase_scope.h"
#include "gpipe/runtime/device/fault_point.h"

namespace gpipe::internal {
namespace {

Phase forward_phase(const Step& step, const Action& action) {
  return step.cells[action.stage][action.microbatch].checkpointed()
             ? Phase::kCheckpointing
             : Phase::kForward;
}

}  // namespace

ForwardPass::ForwardPass(Stages& stages, Step& step,
                         std::vector<Activations> inputs, bool leaf_input,
                         RemoteStages* remote)
    : stages_(stages),
      step_(step),
      leaf_input_(leaf_input),
      remote_(remote),
      inboxes_(stages.partitions.size()),
      unsplit_copies_(stages.partitions.size()),
      outputs_(step.microbatches()) {
  for (std::size_t j = 0; j < inboxes_.size(); ++j) {
    const std::size_t skips = stages.partitions[j].imports.size();
    for (int64_t i = 0; i < step.microbatches(); ++i) {
      Inbox& inbox = inboxes_[j].emplace_back();
      inbox.missing = 1 + skips;
      inbox.activations.skips.resize(skips);
      inbox.skip_ready.resize(skips);
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    deliver({/*backward=*/false, -1, 0, -1, static_cast<int64_t>(i)},
            inputs[i].kind, std::move(inputs[i].boundary), Event());
  }
}

void ForwardPass::deliver(const StageEdge& edge, Value::Kind kind,
                          std::vector<Activation> content, const Event& ready) {
  Inbox& inbox = inboxes_[edge.to][edge.microbatch];
  if (edge.link < 0) {
    inbox.activations.kind = kind;
    inbox.activations.boundary = std::move(content);
    inbox.boundary_ready = ready;
  } else {
    const int64_t k = stages_.links[edge.link].imported;
    inbox.activations.skips[k] = std::move(content.front());
    inbox.skip_ready[k] = ready;
  }
  inbox.missing.fetch_sub(1, std::memory_order_acq_rel);
}

void ForwardPass::pass_on(const StageEdge& edge, Value::Kind kind,
                          std::vector<Activation> content, const Event& made,
                          std::vector<StageOutput>& leaving) {
  if (stages_.partitions[edge.to].remote) {
    leaving.push_back({edge, kind, std::move(content)});
  } else {
    deliver(edge, kind, std::move(content), made);
  }
}

bool ForwardPass::ready(const Action& action) {
  const bool there = inboxes_[action.stage][action.microbatch].missing.load(
                         std::memory_order_acquire) == 0;
  if (remote_) remote_->waits_for(there ? -1 : action.stage - 1);
  if (remote_ && !there) remote_->check();
  return there;
}

void ForwardPass::fetch(const Action& action, CopyLog* log) {
  const int64_t j = action.stage, i = action.microbatch;
  const PhaseScope phase(forward_phase(step_, action), i);
  fault_point("copy-in", j, i);
  Inbox& inbox = inboxes_[j][i];
  if (log)
    log->made_by = {action.stage - 1, ActionKind::kForward, action.microbatch};
  for (Activation& each : inbox.activations.boundary) {
    bring(j, each, inbox.boundary_ready, log);
  }
  for (std::size_t k = 0; k < inbox.activations.skips.size(); ++k) {
    if (log) {
      log->made_by.stage =
          static_cast<int>(stages_.partitions[j].imports[k].from);
    }
    bring(j, inbox.activations.skips[k], inbox.skip_ready[k], log);
  }
}

void ForwardPass::bring(int64_t j, Activation& activation, const Event& ready,
                        CopyLog* log) {
  Copier& copier = step_.copier_of(j);
  at::Tensor& tensor = activation.tensor;
  const bool stays =
      activation.unsplit < 0 || tensor.device() == stages_.partitions[j].device;
  if (stays) {
    tensor = copier.to_device(tensor, ready, log);
    return;
  }
  UnsplitCopy& known = unsplit_copies_[j][activation.unsplit];
  // The sources of all micro-batches are aliases of one tensor.
  if (!known.copy.defined() || !tensor.is_alias_of(known.source)) {
    known = {tensor, copier.to_device(tensor, ready, log)};
  }
  tensor = known.copy;
}

void ForwardPass::perform(const Action& action) {
  const int64_t j = action.stage, i = action.microbatch;
  Cell& cell = step_.cells[j][i];
  const PhaseScope phase(forward_phase(step_, action), i,
                         &cell.layer_at_work());
  fault_point("forward", j, i);
  Activations output = cell.forward(std::move(inboxes_[j][i].activations),
                                    step_.seed, j == 0 && leaf_input_);
  step_.number_leaves(j, i);
  fault_point("copy-out", j, i);
  const Event made = Event::record(stages_.partitions[j].device);
  std::vector<StageOutput> leaving;
  for (std::size_t k = 0; k < stages_.links.size(); ++k) {
    const SkipLink& link = stages_.links[k];
    if (link.from != j) continue;
    pass_on({/*backward=*/false, j, link.to, static_cast<int64_t>(k), i},
            Value::Kind::kTensor, {std::move(output.skips[link.exported])},
            made, leaving);
  }
  output.skips.clear();
  if (j + 1 == stages_.size()) {
    outputs_[i] = std::move(output);
  } else {
    pass_on({/*backward=*/false, j, j + 1, -1, i}, output.kind,
            std::move(output.boundary), made, leaving);
  }
  if (!leaving.empty()) remote_->send(std::move(leaving), made);
}

Failure ForwardPass::place(const Action& action) {
  return step_.failure_at(action, forward_phase(step_, action));
}

}  // namespace gpipe::internal
