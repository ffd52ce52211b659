// Modules and comparisons for the tests of placement.
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstddef>
#include <vector>

#include "gpipe/placement/place.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/models.h"

namespace gpipe::testing {

inline bool is_marked(const torch::Tensor& tensor) {
  return tensor.key_set().has(placement::kPlacementKey);
}

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t size) {
    up = register_module("up", torch::nn::Linear(size, 2 * size));
    down = register_module("down", torch::nn::Linear(2 * size, size));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return down(torch::gelu(up(x)));
  }
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Mlp);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t size) {
    norm = register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({size})));
    mlp = register_module("mlp", Mlp(size));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + mlp(norm(x)); }
  torch::nn::LayerNorm norm{nullptr};
  Mlp mlp{nullptr};
};
TORCH_MODULE(Block);

// A residual module, three levels deep, with its own parameter and buffer.
struct ResidualImpl : torch::nn::Module {
  ResidualImpl() {
    first = register_module("first", Block(6));
    second = register_module("second", Block(6));
    head = register_module("head", torch::nn::Linear(6, 3));
    scale = register_parameter("scale", torch::full({6}, 0.5));
    shift = register_buffer("shift", torch::linspace(-1, 1, 6));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x * scale + shift;
    const torch::Tensor y = first(x);
    torch::Tensor z = second(y);
    z += y;
    return head(torch::cat({z, x}, 0) + torch::cat({y, z}, 0));
  }
  Block first{nullptr}, second{nullptr};
  torch::nn::Linear head{nullptr};
  torch::Tensor scale, shift;
};
TORCH_MODULE(Residual);

// Returns a copy on the CPU.
inline torch::Tensor copy_of(const torch::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().cpu().clone() : tensor;
}

template <typename Net>
std::vector<torch::Tensor> state_of(const Net& net) {
  std::vector<torch::Tensor> state;
  for (const torch::Tensor& each : net->parameters()) {
    state.push_back(copy_of(each));
    state.push_back(copy_of(each.grad()));
  }
  for (const torch::Tensor& each : net->buffers()) {
    state.push_back(copy_of(each));
  }
  return state;
}

inline void expect_equal(const std::vector<torch::Tensor>& a,
                         const std::vector<torch::Tensor>& b) {
  EXPECT_EQ(difference(a, b), "");
}

// Runs backward on one thread. Autograd has a thread per accelerator: if a
// value is used three times on several devices, its gradients add up in order
// of arrival, which changes the last bit. On one thread the order is the same
// as on one device.
struct BackwardOnOneThread {
  BackwardOnOneThread() {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~BackwardOnOneThread() {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(true);
  }
};

// With several threads, a kernel's sums may differ in the last bit, too.
inline const bool kernels_on_one_thread = [] {
  at::set_num_threads(1);
  return true;
}();

// Returns outputs and states of three steps.
template <typename Net>
std::vector<torch::Tensor> train(Net net, const torch::Tensor& input) {
  const BackwardOnOneThread one_thread;
  torch::optim::Adam optimizer(net->parameters(), 0.1);
  std::vector<torch::Tensor> result;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const torch::Tensor output = net->forward(input);
    result.push_back(copy_of(output));
    (output * output).sum().backward();
    optimizer.step();
    for (const torch::Tensor& each : state_of(net)) result.push_back(each);
  }
  return result;
}

// Returns a new net with fixed initial values. Tests run one net on one device
// and a second one in parts.
template <typename Net>
Net make() {
  torch::manual_seed(3);
  return Net();
}

// Returns what `net` returns for `input` on the device whose bits are those of
// device(j). Leaves `net` on the CPU.
template <typename Net>
torch::Tensor forward_on_one(Net net, const torch::Tensor& input) {
  net->to(reference_device());
  const torch::Tensor output = net->forward(input.to(reference_device()));
  net->to(torch::kCPU);
  return copy_of(output);
}

template <typename Net>
std::vector<torch::Tensor> train_on_one(const torch::Tensor& input) {
  Net net = make<Net>();
  net->to(reference_device());
  return train(net, input.to(reference_device()));
}

}  // namespace gpipe::testing
