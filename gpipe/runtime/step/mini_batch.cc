#include "gpipe/runtime/step/mini_batch.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/cell/shared_memory.h"
#include "gpipe/runtime/device/fault_point.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {

MiniBatch::MiniBatch(const Value& input, int64_t chunks, bool with_graph) {
  Value detached = input;
  for (at::Tensor& tensor : detached.tensors()) {
    const bool defined = tensor.defined();
    requires_grad.push_back(with_graph && defined && tensor.requires_grad());
    leaf = leaf && (!defined || tensor.is_leaf());
    if (defined) tensor = tensor.detach();
  }
  fault_point("scatter", 0);
  pieces = scatter(detached, chunks);
}

std::vector<int64_t> MiniBatch::rows() const {
  std::vector<int64_t> rows;
  for (const Value& piece : pieces) rows.push_back(rows_of(piece));
  return rows;
}

std::vector<Activations> MiniBatch::parcels() const {
  std::vector<Activations> parcels;
  for (const Value& piece : pieces) {
    Activations& activations = parcels.emplace_back();
    activations.kind = piece.kind();
    for (std::size_t k = 0; k < requires_grad.size(); ++k) {
      activations.boundary.push_back(
          {piece.tensors()[k], requires_grad[k], /*shared=*/false});
    }
    mark_shared(activations.boundary);
  }
  return parcels;
}

Element::Element(std::size_t index, const std::vector<Value>& pieces)
    : index(index) {
  for (const Value& piece : pieces) {
    const at::Tensor& tensor = piece.tensors()[index];
    const bool has_rows = tensor.defined() && tensor.dim() > 0;
    rows.push_back(has_rows ? tensor.size(0) : 0);
    if (!tensor.defined()) continue;
    sizes_ = tensor.sizes().vec();
    options_ = tensor.options();
  }
}

at::Tensor Element::join(
    const std::vector<std::vector<at::Tensor>>& grads) const {
  std::vector<at::Tensor> pieces;
  bool any = false;
  for (const auto& of_microbatch : grads) {
    at::Tensor grad =
        of_microbatch.empty() ? at::Tensor() : of_microbatch[index];
    any = any || grad.defined();
    pieces.push_back(std::move(grad));
  }
  if (!any) return {};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].defined()) {
      record_stream(pieces[i], pieces[i].device());
      continue;
    }
    auto sizes = sizes_;
    sizes[0] = rows[i];
    pieces[i] = at::zeros(sizes, options_);
  }
  if (pieces.size() == 1) return pieces[0];
  return at::cat(pieces, 0);
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
