// The skip tensors of a model whose layers are profiled one by one.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <map>
#include <optional>
#include <vector>

#include "gpipe/runtime/graph.h"
#include "gpipe/skip/tracker.h"

namespace gpipe::balancing {

// Cuts the autograd graph between the layer that stashes a tensor and the one
// that pops it, so that each layer's backward is its own.
class ProfileTracker : public SkipTracker {
 public:
  void save(const SkipKey& key, std::optional<at::Tensor> tensor) override;
  std::optional<at::Tensor> load(const SkipKey& key) override;

  // What the layer at work has stashed: outputs of its graph.
  std::vector<at::Tensor> stashed() const;
  // Where the gradients of what it has popped arrive.
  const std::vector<torch::autograd::Edge>& popped() const { return popped_; }

  // The layer is done: what it has stashed goes to later layers.
  void end_layer();

 private:
  std::map<SkipKey, at::Tensor> stashed_;  // undefined for none
  std::map<SkipKey, Crossing> travelling_;
  std::vector<torch::autograd::Edge> popped_;
};

}  // namespace gpipe::balancing
