// Runs of single layers of a model that leave no trace in it, with their skip
// tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/runtime/autograd/graph.h"
#include "gpipe/runtime/cell/layer.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/skip/skippable.h"

namespace gpipe::balancing {

// A layer whose runs do not change the original. It is a deep copy if the layer
// can be cloned. A layer that cannot (LibTorch's clone() is opt-in, see
// torch/nn/cloneable.h) is used itself. The destructor then restores its modes,
// parameters and buffers (see internal::RegistryGuard). Members that are not
// registered with the module keep the values that a run gave them.
//
// The caller must not accumulate gradients.
class Sandbox {
 public:
  // `values`: false if the layer runs on the meta device, which writes none.
  explicit Sandbox(const torch::nn::AnyModule& layer, bool values = true);

  torch::nn::AnyModule& layer() { return layer_; }
  bool is_copy() const { return is_copy_; }

 private:
  torch::nn::AnyModule layer_;
  bool is_copy_;
  std::optional<internal::RegistryGuard> guard_;  // of a layer that is no copy
};

// Returns a sandbox for each layer of `module`, all in training mode.
std::vector<Sandbox> sandboxes_of(const torch::nn::Sequential& module,
                                  bool values = true);

// Moves the parameters and buffers of `module` to `device` while in scope.
// Afterwards they have the same memory as before.
class Visit {
 public:
  Visit(const torch::nn::Module& module, c10::Device device);
  ~Visit();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  void bring(const at::Tensor& tensor, c10::Device device);

  std::vector<std::pair<at::Tensor, at::Tensor>> moved_;  // and old data
};

// The value between two layers, without a graph.
struct Boundary {
  internal::Value::Kind kind = internal::Value::Kind::kTensor;
  std::vector<internal::Activation> inputs;

  // Returns the input of the next layer, at which the layer's graph begins.
  internal::Value graph_input() const;
};
Boundary without_graph(const internal::Value& value);

// Holds skip tensors between layers. Cuts the autograd graph between the layer
// that stashes a tensor and the layer that pops it, so that the backward of
// each layer runs alone.
class ProfileTracker : public internal::SkipTracker {
 public:
  void save(const SkipKey& key, std::optional<at::Tensor> tensor) override;
  std::optional<at::Tensor> load(const SkipKey& key) override;

  // Returns the outputs of the current layer's graph: the tensors of `output`,
  // and then what the layer has stashed.
  std::vector<at::Tensor> outputs(const internal::Value& output) const;
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
