#include "gpipe/runtime/step/forward_pass.h"

#include <utility>

#include "gpipe/runtime/device/fault_point.h"
#include "gpipe/runtime/cell/phase.h"

namespace gpipe {
namespace {

Phase forward_phase(const Step& step, const Action& action) {
  return step.cells[action.stage][action.microbatch].checkpointed()
             ? Phase::kCheckpointing
             : Phase::kForward;
}

}  // namespace

ForwardPass::ForwardPass(Stages& stages, Step& step, std::vector<Parcel> inputs,
                         bool leaf_input, Border* border)
    : stages_(stages),
      step_(step),
      leaf_input_(leaf_input),
      border_(border),
      inboxes_(stages.partitions.size()),
      outputs_(step.microbatches()) {
  for (std::size_t j = 0; j < inboxes_.size(); ++j) {
    const std::size_t skips = stages.partitions[j].imports.size();
    for (int64_t i = 0; i < step.microbatches(); ++i) {
      Inbox& inbox = inboxes_[j].emplace_back();
      inbox.missing = 1 + skips;
      inbox.parcel.skips.resize(skips);
      inbox.skip_ready.resize(skips);
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    deliver({/*backward=*/false, -1, 0, -1, static_cast<int64_t>(i)},
            inputs[i].kind, std::move(inputs[i].boundary), Moment());
  }
}

void ForwardPass::deliver(const Passage& passage, Value::Kind kind,
                          std::vector<Crossing> content, const Moment& ready) {
  Inbox& inbox = inboxes_[passage.to][passage.microbatch];
  if (passage.link < 0) {
    inbox.parcel.kind = kind;
    inbox.parcel.boundary = std::move(content);
    inbox.boundary_ready = ready;
  } else {
    const int64_t k = stages_.links[passage.link].imported;
    inbox.parcel.skips[k] = std::move(content.front());
    inbox.skip_ready[k] = ready;
  }
  inbox.missing.fetch_sub(1, std::memory_order_acq_rel);
}

void ForwardPass::pass_on(const Passage& passage, Value::Kind kind,
                          std::vector<Crossing> content, const Moment& made,
                          std::vector<Outgoing>& leaving) {
  if (stages_.partitions[passage.to].elsewhere) {
    leaving.push_back({passage, kind, std::move(content)});
  } else {
    deliver(passage, kind, std::move(content), made);
  }
}

bool ForwardPass::ready(const Action& action) {
  const bool there = inboxes_[action.stage][action.microbatch].missing.load(
                         std::memory_order_acquire) == 0;
  if (border_) border_->waits_for(there ? -1 : action.stage - 1);
  if (border_ && !there) border_->check();
  return there;
}

void ForwardPass::fetch(const Action& action, CopyLog* log) {
  const int64_t j = action.stage, i = action.microbatch;
  const PhaseScope phase(forward_phase(step_, action), i);
  fault_point("copy-in", j, i);
  Inbox& inbox = inboxes_[j][i];
  Transport& transport = stages_.transports[j];
  if (log) log->made_by = {action.stage - 1, Kind::kForward, action.microbatch};
  for (Crossing& each : inbox.parcel.boundary) {
    each.tensor = transport.bring(each.tensor, inbox.boundary_ready, log);
  }
  for (std::size_t k = 0; k < inbox.parcel.skips.size(); ++k) {
    if (log) {
      log->made_by.stage =
          static_cast<int>(stages_.partitions[j].imports[k].from);
    }
    at::Tensor& skip = inbox.parcel.skips[k].tensor;
    skip = transport.bring(skip, inbox.skip_ready[k], log);
  }
}

void ForwardPass::perform(const Action& action) {
  const int64_t j = action.stage, i = action.microbatch;
  const PhaseScope phase(forward_phase(step_, action), i);
  fault_point("forward", j, i);
  Parcel output = step_.cells[j][i].forward(std::move(inboxes_[j][i].parcel),
                                            step_.seed, j == 0 && leaf_input_);
  step_.number_leaves(j, i);
  fault_point("copy-out", j, i);
  const Moment made = Moment::now(stages_.partitions[j].device);
  std::vector<Outgoing> leaving;
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
  if (!leaving.empty()) border_->send(std::move(leaving), made);
}

Failure ForwardPass::place(const Action& action) {
  return step_.failure_at(action, forward_phase(step_, action));
}

}  // namespace gpipe
