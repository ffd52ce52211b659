// The skip tensors of a model whose layers are profiled one by one.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <map>
#include <optional>
#include <vector>

#include "gpipe/runtime/autograd/graph.h"
#include "gpipe/skip/skippable.h"

namespace gpipe::balancing {

// Holds skip tensors between layers. Cuts the autograd graph between the layer
// that stashes a tensor and the layer that pops it, so that the backward of
// each layer runs alone.
class ProfileTracker : public internal::SkipTracker {
 public:
  void save(const SkipKey& key, std::optional<at::Tensor> tensor) override;
  std::optional<at::Tensor> load(const SkipKey& key) override;

  // Returns what the current layer has stashed: outputs of its graph.
  std::vector<at::Tensor> stashed() const;
  // Returns the edges at which the gradients of the popped tensors arrive.
  const std::vector<torch::autograd::Edge>& popped() const { return popped_; }

  // Ends the current layer: the tensors it stashed become available to later
  // layers.
  void end_layer();

 private:
  std::map<SkipKey, at::Tensor> stashed_;  // undefined: no tensor
  std::map<SkipKey, internal::Activation> travelling_;
  std::vector<torch::autograd::Edge> popped_;
};

}  // namespace gpipe::balancing
