// Runs a layer for trial without leaving a trace in the model.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <memory>
#include <utility>
#include <vector>

namespace gpipe::balancing {

// A layer in training mode whose run changes nothing of the original: a deep
// copy, where the layer can be cloned. A layer that cannot (LibTorch's clone()
// is opt-in, see torch/nn/cloneable.h) is lent instead: its mode and the
// contents of its buffers are put back in the destructor. Members that are not
// registered with the module then keep what a run made of them.
//
// Gradients are left to the caller: do not accumulate any.
class Sandbox {
 public:
  explicit Sandbox(const torch::nn::AnyModule& layer);
  ~Sandbox();
  Sandbox(Sandbox&&) = default;
  Sandbox& operator=(Sandbox&&) = delete;

  torch::nn::AnyModule& layer() { return layer_; }
  bool is_copy() const { return is_copy_; }

 private:
  torch::nn::AnyModule layer_;
  bool is_copy_;
  // Of a lent layer.
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // and its contents
};

// While in scope, the parameters and buffers of `module` are on `device`; then
// they are the same memory as before.
class Visit {
 public:
  Visit(const torch::nn::Module& module, c10::Device device);
  ~Visit();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  void bring(const at::Tensor& tensor, c10::Device device);

  std::vector<std::pair<at::Tensor, at::Tensor>> moved_;  // and its old data
};

}  // namespace gpipe::balancing
