#include "gpipe/runtime/step.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "gpipe/runtime/phase.h"

namespace gpipe {
namespace {

int64_t find_key(const std::vector<SkipRoute>& routes, const SkipKey& key) {
  for (std::size_t k = 0; k < routes.size(); ++k) {
    if (routes[k].key == key) return static_cast<int64_t>(k);
  }
  return -1;
}

Failure failure_at(const Step& step, const Action& action, Phase phase) {
  Failure failure;
  failure.partition = action.stage;
  failure.microbatch = action.microbatch;
  failure.phase = phase;
  failure.layer = step.cells[action.stage][action.microbatch].layer_at_work();
  return failure;
}

Phase forward_phase(const Step& step, const Action& action) {
  return step.cells[action.stage][action.microbatch].checkpointed()
             ? Phase::kCheckpointing
             : Phase::kForward;
}

}  // namespace

Stages::Stages(std::vector<Partition> partitions_in)
    : partitions(std::move(partitions_in)) {
  for (const Partition& from : partitions) {
    transfers.emplace_back(from.device);
    for (std::size_t k = 0; k < from.exports.size(); ++k) {
      const SkipRoute& route = from.exports[k];
      links.push_back({route.from, static_cast<int64_t>(k), route.to,
                       find_key(partitions[route.to].imports, route.key)});
    }
  }
}

Step::Step(Stages& stages, int64_t microbatches, int64_t checkpointed)
    : cells(stages.partitions.size()) {
  for (std::size_t j = 0; j < cells.size(); ++j) {
    for (int64_t i = 0; i < microbatches; ++i) {
      cells[j].emplace_back(stages.partitions[j], i, i < checkpointed);
    }
  }
}

void Step::number_leaves() {
  std::unordered_map<at::TensorImpl*, int64_t> numbers;
  for (std::size_t j = 0; j < cells.size(); ++j) {
    for (Cell& cell : cells[j]) {
      for (const at::Tensor& leaf : cell.leaves()) {
        const auto [entry, is_new] = numbers.emplace(
            leaf.unsafeGetTensorImpl(), static_cast<int64_t>(leaves.size()));
        if (is_new) {
          leaves.push_back(leaf);
          leaf_partition.push_back(static_cast<int64_t>(j));
        }
        cell.leaf_numbers().push_back(entry->second);
      }
    }
  }
}

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
  Transfer& transfer = stages_.transfers[j];
  for (Crossing& each : parcel.boundary) {
    each.tensor = transfer.bring(each.tensor, inbox.boundary_ready);
  }
  for (std::size_t k = 0; k < parcel.skips.size(); ++k) {
    parcel.skips[k].tensor =
        transfer.bring(parcel.skips[k].tensor, inbox.skip_ready[k]);
  }

  Parcel output = step_.cells[j][i].forward(std::move(parcel), step_.seed,
                                            j == 0 && leaf_input_);
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
  return failure_at(step_, action, forward_phase(step_, action));
}

BackwardPass::BackwardPass(Stages& stages, Step& step,
                           std::vector<std::vector<at::Tensor>> grads,
                           bool input_wanted, std::vector<bool> leaf_wanted,
                           bool keep_graph)
    : stages_(stages),
      step_(step),
      leaf_wanted_(std::move(leaf_wanted)),
      keep_graph_(keep_graph),
      first_wanted_(input_wanted ? 0 : stages.size()),
      input_wanted_(input_wanted),
      inboxes_(stages.partitions.size()),
      input_grads_(grads.size()) {
  for (std::size_t leaf = 0; leaf < leaf_wanted_.size(); ++leaf) {
    if (leaf_wanted_[leaf]) {
      first_wanted_ = std::min(first_wanted_, step.leaf_partition[leaf]);
    }
  }
  for (std::size_t j = 0; j < inboxes_.size(); ++j) {
    sums_.emplace_back(step.leaves.size());
    const std::size_t skips = stages.partitions[j].exports.size();
    for (std::size_t i = 0; i < grads.size(); ++i) {
      Inbox& inbox = inboxes_[j].emplace_back();
      inbox.grads.skips.resize(skips);
      inbox.skip_ready.resize(skips);
    }
  }
  for (std::size_t i = 0; i < grads.size(); ++i) {
    inboxes_.back()[i].grads.boundary = std::move(grads[i]);
    inboxes_.back()[i].full = true;
  }
}

bool BackwardPass::ready(const Action& action) {
  if (action.kind == Kind::kRecompute || action.stage < first_wanted_) {
    return true;
  }
  return inboxes_[action.stage][action.microbatch].full.load(
      std::memory_order_acquire);
}

void BackwardPass::perform(const Action& action) {
  const int64_t j = action.stage, i = action.microbatch;
  Cell& cell = step_.cells[j][i];
  if (j < first_wanted_) {
    if (!keep_graph_) cell.release();
    return;
  }
  if (action.kind == Kind::kRecompute) {
    // As in the forward: gradients on, autocast, whatever it was.
    at::ThreadLocalStateGuard as_in_forward(step_.caller);
    const PhaseScope phase(Phase::kRecomputing, i);
    cell.recompute(step_.seed);
    return;
  }

  const PhaseScope phase(Phase::kBackward, i);
  GradParcel back = backward(j, i);
  const Moment made = Moment::now(stages_.partitions[j].device);
  for (const SkipLink& link : stages_.links) {
    if (link.to != j) continue;
    Inbox& from = inboxes_[link.from][i];
    from.grads.skips[link.exported] = std::move(back.skips[link.imported]);
    from.skip_ready[link.exported] = made;
  }
  if (j == 0) {
    input_grads_[i] = std::move(back.boundary);
    return;
  }
  Inbox& previous = inboxes_[j - 1][i];
  previous.grads.boundary = std::move(back.boundary);
  previous.boundary_ready = made;
  previous.full.store(true, std::memory_order_release);
}

GradParcel BackwardPass::backward(int64_t j, int64_t i) {
  Inbox& inbox = inboxes_[j][i];
  GradParcel grads = std::move(inbox.grads);
  Transfer& transfer = stages_.transfers[j];
  for (at::Tensor& grad : grads.boundary) {
    grad = transfer.bring(grad, inbox.boundary_ready);
  }
  for (std::size_t k = 0; k < grads.skips.size(); ++k) {
    grads.skips[k] = transfer.bring(grads.skips[k], inbox.skip_ready[k]);
  }

  Cell& cell = step_.cells[j][i];
  std::vector<at::Tensor> leaf_grads;
  const bool want_input = j > first_wanted_ || input_wanted_;
  GradParcel back = cell.backward(std::move(grads), keep_graph_, want_input,
                                  leaf_wanted_, leaf_grads);
  for (std::size_t k = 0; k < leaf_grads.size(); ++k) {
    sums_[j].add(cell.leaf_numbers()[k], std::move(leaf_grads[k]));
  }
  if (!keep_graph_) cell.release();
  return back;
}

Failure BackwardPass::place(const Action& action) {
  return failure_at(
      step_, action,
      action.kind == Kind::kRecompute ? Phase::kRecomputing : Phase::kBackward);
}

std::vector<at::Tensor> BackwardPass::take_leaf_grads() {
  std::vector<at::Tensor> grads;
  for (std::size_t leaf = 0; leaf < step_.leaves.size(); ++leaf) {
    GradSum over_partitions(1);
    for (auto sum = sums_.rbegin(); sum != sums_.rend(); ++sum) {
      at::Tensor grad = sum->take(leaf);
      // Made on the partition's stream, used and given back on the caller's.
      if (grad.defined()) record_use(grad, grad.device());
      over_partitions.add(0, std::move(grad));
    }
    grads.push_back(over_partitions.take(0));
  }
  return grads;
}

}  // namespace gpipe
