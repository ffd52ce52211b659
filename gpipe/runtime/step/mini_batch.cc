#include "gpipe/runtime/step/mini_batch.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "gpipe/runtime/autograd/gradients.h"
#include "gpipe/runtime/autograd/graph.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/device/test_hooks.h"

namespace gpipe::internal {

Element::Element(std::size_t index, const std::vector<Value>& pieces)
    : form_(Form::kRows), index_(index) {
  for (const Value& piece : pieces) {
    const at::Tensor& tensor = piece.tensors()[index];
    const bool has_rows = tensor.defined() && tensor.dim() > 0;
    rows_.push_back(has_rows ? tensor.size(0) : 0);
    if (!tensor.defined()) continue;
    sizes_ = tensor.sizes().vec();
    options_ = tensor.options();
  }
}

at::Tensor Element::join(
    const std::vector<std::vector<at::Tensor>>& grads) const {
  const auto piece_of = [&](std::size_t i) {
    at::Tensor piece = grads[i].empty() ? at::Tensor() : grads[i][index_];
    if (piece.defined()) record_stream(piece, piece.device());
    return piece;
  };
  if (form_ == Form::kPart) return piece_of(microbatch_);
  if (form_ == Form::kWhole) {
    GradSum sum;
    for (std::size_t i = 0; i < grads.size(); ++i) sum.add(0, piece_of(i));
    return sum.take(0);
  }
  std::vector<at::Tensor> pieces;
  bool any = false;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    pieces.push_back(piece_of(i));
    any = any || pieces.back().defined();
  }
  if (!any) return {};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].defined()) continue;
    auto sizes = sizes_;
    sizes[0] = rows_[i];
    pieces[i] = at::zeros(sizes, options_);
  }
  if (pieces.size() == 1) return pieces[0];
  return at::cat(pieces, 0);
}

void Element::split(at::Tensor grad,
                    std::vector<std::vector<at::Tensor>>& grads) const {
  if (form_ == Form::kPart) {
    grads[microbatch_][index_] = std::move(grad);
    return;
  }
  if (rows_.size() == 1) {
    grads[0][index_] = std::move(grad);
    return;
  }
  int64_t row = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    grads[i][index_] = grad.narrow(0, row, rows_[i]);
    row += rows_[i];
  }
}

MiniBatch::MiniBatch(Batch input, std::vector<int64_t> rows, Unsplit unsplit,
                     bool with_graph)
    : input_(std::move(input)),
      unsplit_(std::move(unsplit)),
      rows_(std::move(rows)),
      with_graph_(with_graph) {
  std::vector<Value> detached = input_.values();
  for (Value& value : detached) {
    for (at::Tensor& tensor : value.tensors()) {
      if (!tensor.defined()) continue;
      check_no_tangent(tensor, "the input");
      leaf_ = leaf_ && tensor.is_leaf();
      tensor = tensor.detach();
    }
  }
  fault_point("scatter", 0);
  if (!input_.split()) {
    pieces_ = scatter(detached.front(), rows_, unsplit_);
    return;
  }
  unsplit_.clear();
  rows_.clear();
  for (const Value& part : detached) rows_.push_back(rows_of(part));
  pieces_ = std::move(detached);
}

std::vector<Activations> MiniBatch::activations() const {
  std::vector<Activations> all;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Value& whole = input_.values()[input_.split() ? i : 0];
    Activations& activations = all.emplace_back();
    activations.kind = pieces_[i].kind();
    for (std::size_t k = 0; k < whole.tensors().size(); ++k) {
      const at::Tensor& tensor = whole.tensors()[k];
      Activation& each = activations.boundary.emplace_back();
      each.tensor = pieces_[i].tensors()[k];
      each.requires_grad =
          with_graph_ && tensor.defined() && tensor.requires_grad();
      if (is_unsplit(unsplit_, k)) {
        each.unsplit = static_cast<int>(k);
        each.shared = pieces_.size() > 1;
      }
    }
    mark_shared(activations.boundary);
  }
  return all;
}

std::vector<MiniBatch::Wanted> MiniBatch::wanted() const {
  std::vector<Wanted> result;
  for (std::size_t i = 0; with_graph_ && i < input_.values().size(); ++i) {
    const auto& tensors = input_.values()[i].tensors();
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      if (!tensors[k].defined() || !tensors[k].requires_grad()) continue;
      if (input_.split()) {
        result.push_back(
            {tensors[k], Element::of_part(static_cast<int64_t>(i), k)});
      } else if (is_unsplit(unsplit_, k)) {
        result.push_back({tensors[k], Element::whole(k)});
      } else {
        result.push_back({tensors[k], Element(k, pieces_)});
      }
    }
  }
  return result;
}

std::vector<torch::autograd::Edge> accumulators_of(
    const std::vector<Partition>& partitions) {
  std::vector<torch::autograd::Edge> edges;
  for (const Partition& partition : partitions) {
    if (!has_streams(partition.device)) continue;
    for (const Layer& layer : partition.layers) {
      for (const at::Tensor& each : layer.module.ptr()->parameters()) {
        if (each.requires_grad()) {
          edges.push_back(torch::autograd::impl::gradient_edge(each));
        }
      }
    }
  }
  return edges;
}

// Discards statistics of an earlier mini-batch that failed and could not be
// discarded at that time.
MiniBatchNorms::MiniBatchNorms(const std::vector<Partition>& partitions)
    : partitions_(partitions) {
  discard();
}

MiniBatchNorms::~MiniBatchNorms() {
  if (kept_) return;
  try {
    if (written_) {
      NormStatistics::undo(updates_);
    } else {
      discard();
    }
  } catch (...) {
    // The device has failed, or memory has run out. The next mini-batch tries
    // again.
  }
}

void MiniBatchNorms::prepare() {
  for (const Partition& each : partitions_) {
    if (!each.norms) continue;
    for (auto& update : each.norms->updates()) {
      updates_.push_back(std::move(update));
    }
  }
}

void MiniBatchNorms::write() {
  written_ = true;
  for (const Partition& each : partitions_) {
    if (each.norms) each.norms->forget();
  }
  NormStatistics::make(updates_);
}

void MiniBatchNorms::keep() noexcept { kept_ = true; }

void MiniBatchNorms::discard() {
  for (const Partition& each : partitions_) {
    if (each.norms) each.norms->discard();
  }
}

}  // namespace gpipe::internal
