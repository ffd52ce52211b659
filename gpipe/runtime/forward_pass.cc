#include "gpipe/runtime/forward_pass.h"

#include <utility>

#include "gpipe/runtime/phase.h"

namespace gpipe {
namespace {

Phase forward_phase(const Step& step, const Action& action) {
  return step.cells[action.stage][action.microbatch].checkpointed()
             ? Phase::kCheckpointing
             : Phase::kForward;
}

}  // namespace

ForwardPass::ForwardPass(Stages& stages, Step& step, std::vector<Parcel> inputs,
                         bool leaf_input)
    : stages_(stages),
      step_(step),
      leaf_input_(leaf_input),
      inboxes_(stages.partitions.size()),
      outputs_(inputs.size()) {
  for (std::size_t j = 0; j < inboxes_.size(); ++j) {
    const std::size_t skips = stages.partitions[j].imports.size();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Inbox& inbox = inboxes_[j].emplace_back();
      inbox.parcel.skips.resize(skips);
      inbox.skip_ready.resize(skips);
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inboxes_[0][i].parcel.kind = inputs[i].kind;
    inboxes_[0][i].parcel.boundary = std::move(inputs[i].boundary);
    inboxes_[0][i].full = true;
  }
}

bool ForwardPass::ready(const Action& action) {
  return inboxes_[action.stage][action.microbatch].full.load(
      std::memory_order_acquire);
}

void ForwardPass::perform(const Action& action) {
  const int64_t j = action.stage, i = action.microbatch;
  const PhaseScope phase(forward_phase(step_, action), i);
  Inbox& inbox = inboxes_[j][i];
  Parcel parcel = std::move(inbox.parcel);
  Transport& transport = stages_.transports[j];
  for (Crossing& each : parcel.boundary) {
    each.tensor = transport.bring(each.tensor, inbox.boundary_ready);
  }
  for (std::size_t k = 0; k < parcel.skips.size(); ++k) {
    parcel.skips[k].tensor =
        transport.bring(parcel.skips[k].tensor, inbox.skip_ready[k]);
  }

  Parcel output = step_.cells[j][i].forward(std::move(parcel), step_.seed,
                                            j == 0 && leaf_input_);
  step_.number_leaves(j, i);
  const Moment made = Moment::now(stages_.partitions[j].device);
  for (const SkipLink& link : stages_.links) {
    if (link.from != j) continue;
    Inbox& to = inboxes_[link.to][i];
    to.parcel.skips[link.imported] = std::move(output.skips[link.exported]);
    to.skip_ready[link.imported] = made;
  }
  output.skips.clear();
  if (j + 1 == stages_.size()) {
    outputs_[i] = std::move(output);
    return;
  }
  Inbox& next = inboxes_[j + 1][i];
  next.parcel.kind = output.kind;
  next.parcel.boundary = std::move(output.boundary);
  next.boundary_ready = made;
  next.full.store(true, std::memory_order_release);
}

Failure ForwardPass::place(const Action& action) {
  return step_.failure_at(action, forward_phase(step_, action));
}

}  // namespace gpipe
