#include "balancing/profile/layer_run.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "gpipe/runtime/cell/layer.h"

namespace gpipe::balancing {
namespace {

using internal::Stamp;
using torch::autograd::Edge;

Boundary without_graph(const internal::Value& value) {
  Boundary boundary{value.kind(), {}};
  for (const at::Tensor& tensor : value.tensors()) {
    boundary.inputs.push_back(internal::without_graph(tensor));
  }
  return boundary;
}

// Returns the shape, strides and type of a tensor, without its memory.
at::Tensor shape_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.requires_grad()) return {};
  const at::Tensor plain = tensor.detach();
  return at::empty_like(plain, plain.options().device(at::kMeta));
}

}  // namespace

Boundary copy_to(const internal::Value& sample, c10::Device device) {
  Boundary boundary = without_graph(sample);
  for (internal::Activation& input : boundary.inputs) {
    if (!input.tensor.defined()) continue;
    input.tensor = input.tensor.to(input.tensor.options().device(device),
                                   /*non_blocking=*/false,
                                   /*copy=*/true);
  }
  return boundary;
}

void ProfileSums::begin_layer(const std::vector<at::Tensor>& leaves) {
  if (!keep_) {
    sums_ = internal::GradSum();
    places_.clear();
  }
  place_of_leaf_.clear();
  for (const at::Tensor& leaf : leaves) {
    const auto [found, is_new] =
        places_.emplace(leaf.unsafeGetTensorImpl(),
                        Place{places_.size(), {}, leaf.scalar_type()});
    Place& place = found->second;
    if (is_new || leaf.sizes() != place.sizes ||
        leaf.scalar_type() != place.type) {
      place.sizes = leaf.sizes().vec();
      place.type = leaf.scalar_type();
      sums_.take(place.index);
      sums_.add(place.index, at::zeros_like(leaf));
    }
    place_of_leaf_.push_back(place.index);
  }
}

void ProfileSums::add(std::size_t leaf, at::Tensor grad) {
  sums_.add(place_of_leaf_[leaf], std::move(grad));
}

double LayerStamps::accumulate() const {
  double seconds = 0;
  for (const auto& [start, end] : sums) seconds += end.seconds_since(start);
  return seconds;
}

double LayerStamps::backward_input() const {
  return has_input ? input_end.seconds_since(backward_start) : 0;
}

double LayerStamps::backward_weight() const {
  return has_weight ? backward_end.seconds_since(weight_start) - accumulate()
                    : 0;
}

LayerRun::LayerRun(torch::nn::AnyModule& layer, Boundary& boundary,
                   ProfileTracker& tracker, c10::Device device)
    : device_(device) {
  internal::GraphInputs input_edges(boundary.inputs, /*leaf=*/false);
  targets_ = input_edges.edges();
  internal::Value input(boundary.kind, std::move(input_edges.tensors()));
  boundary.inputs.clear();

  stamps_.forward_start = Stamp::now(device_);
  const internal::Value output = internal::call_layer(layer, std::move(input));
  stamps_.forward_end = Stamp::now(device_);

  std::vector<at::Tensor> outputs = output.tensors();
  for (at::Tensor& stashed : tracker.stashed()) {
    outputs.push_back(std::move(stashed));
  }
  targets_.insert(targets_.end(), tracker.popped().begin(),
                  tracker.popped().end());
  for (const at::Tensor& each : outputs) {
    output_edges_.push_back(internal::gradient_edge(each));
    output_shapes_.push_back(shape_of(each));
  }
  leaves_ = internal::find_leaves(output_edges_, targets_);
  stamps_.has_input = std::ranges::any_of(
      targets_, [](const Edge& edge) { return edge.is_valid(); });
  stamps_.has_weight = !leaves_.tensors.empty();
  boundary = without_graph(output);
  tracker.end_layer();
}

// Returns the gradients of the outputs.
std::vector<at::Tensor> LayerRun::begin_backward() {
  std::vector<at::Tensor> ones;
  for (const at::Tensor& shape : output_shapes_) {
    ones.push_back(shape.defined()
                       ? at::ones_like(shape, shape.options().device(device_))
                       : at::Tensor());
  }
  stamps_.backward_start = Stamp::now(device_);
  return ones;
}

internal::LeafSink LayerRun::sink_to(ProfileSums& sums) {
  sums.begin_layer(leaves_.tensors);
  return [this, &sums](std::size_t leaf, at::Tensor grad) {
    Stamp start = Stamp::now(device_);
    sums.add(leaf, std::move(grad));
    stamps_.sums.emplace_back(std::move(start), Stamp::now(device_));
  };
}

void LayerRun::backward(ProfileSums& sums) {
  const internal::LeafSink sink = sink_to(sums);
  std::vector<at::Tensor> grads = begin_backward();
  internal::run_backward(output_edges_, std::move(grads), targets_,
                         /*keep_graph=*/false, leaves_,
                         std::vector<bool>(leaves_.tensors.size(), true), sink);
  stamps_.backward_end = Stamp::now(device_);
  output_edges_.clear();
  targets_.clear();
  leaves_ = internal::Leaves();
}

void LayerRun::backward_input() {
  std::vector<at::Tensor> grads = begin_backward();
  parts_.emplace(std::move(output_edges_), std::move(targets_),
                 std::vector<Edge>(), leaves_);
  parts_->input_part(std::move(grads));
  stamps_.input_end = Stamp::now(device_);
}

void LayerRun::backward_weight(ProfileSums& sums) {
  const internal::LeafSink sink = sink_to(sums);
  stamps_.weight_start = Stamp::now(device_);
  parts_->weight_part(sink);
  stamps_.backward_end = Stamp::now(device_);
  parts_.reset();
  leaves_ = internal::Leaves();
}

}  // namespace gpipe::balancing
