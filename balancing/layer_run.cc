#include "balancing/layer_run.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/edge.h>

#include <algorithm>

#include "gpipe/runtime/cell/layer.h"
#include "gpipe/runtime/cell/split_backward.h"

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

std::vector<at::Tensor> ones_for(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> ones(outputs.size());
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (outputs[k].defined() && outputs[k].requires_grad()) {
      ones[k] = at::ones_like(outputs[k]);
    }
  }
  return ones;
}

// Runs the backward from ones for all `outputs`.
void run_backward(const std::vector<at::Tensor>& outputs,
                  const std::vector<Edge>& targets, ProfileSums& sums,
                  c10::Device device, bool split, LayerStamps& stamps) {
  std::vector<Edge> output_edges;
  for (const at::Tensor& each : outputs) {
    output_edges.push_back(internal::gradient_edge(each));
  }
  const internal::Leaves leaves = internal::find_leaves(output_edges, targets);
  sums.begin_layer(leaves.tensors);
  stamps.has_input =
      std::any_of(targets.begin(), targets.end(),
                  [](const Edge& edge) { return edge.is_valid(); });
  stamps.has_weight = !leaves.tensors.empty();
  const internal::LeafSink sink = [&](std::size_t leaf, at::Tensor grad) {
    Stamp start = Stamp::now(device);
    sums.add(leaf, std::move(grad));
    stamps.sums.emplace_back(std::move(start), Stamp::now(device));
  };
  std::vector<at::Tensor> grads = ones_for(outputs);
  stamps.backward_start = Stamp::now(device);
  if (split) {
    internal::SplitBackward parts(std::move(output_edges), targets,
                                  /*inner=*/{}, leaves);
    parts.input_part(std::move(grads));
    stamps.input_end = Stamp::now(device);
    parts.weight_part(sink);
  } else {
    internal::run_backward(output_edges, std::move(grads), targets,
                           /*keep_graph=*/false, leaves,
                           std::vector<bool>(leaves.tensors.size(), true),
                           sink);
  }
  stamps.backward_end = Stamp::now(device);
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
  if (!has_weight) return 0;
  // Without a gradient of an input, this part begins at once.
  const Stamp& start = has_input ? input_end : backward_start;
  return backward_end.seconds_since(start) - accumulate();
}

LayerStamps run_layer(torch::nn::AnyModule& layer, Boundary& boundary,
                      ProfileTracker& tracker, ProfileSums& sums,
                      c10::Device device, bool split) {
  internal::GraphInputs input_edges(boundary.inputs, /*leaf=*/false);
  std::vector<Edge> targets = input_edges.edges();
  internal::Value input(boundary.kind, std::move(input_edges.tensors()));
  boundary.inputs.clear();

  LayerStamps stamps;
  stamps.forward_start = Stamp::now(device);
  const internal::Value output = internal::call_layer(layer, std::move(input));
  stamps.forward_end = Stamp::now(device);

  std::vector<at::Tensor> outputs = output.tensors();
  for (at::Tensor& stashed : tracker.stashed()) {
    outputs.push_back(std::move(stashed));
  }
  targets.insert(targets.end(), tracker.popped().begin(),
                 tracker.popped().end());
  run_backward(outputs, targets, sums, device, split, stamps);

  boundary = without_graph(output);
  tracker.end_layer();
  return stamps;
}

}  // namespace gpipe::balancing
