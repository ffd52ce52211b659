#include "gpipe/testing/models.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "gpipe/skip/skippable.h"
#include "gpipe/testing/devices.h"

namespace gpipe::testing {
namespace {

struct StashImpl : torch::nn::Module, Skippable {
  explicit StashImpl(bool as_integer)
      : Skippable({{"skip"}, {}}), as_integer(as_integer) {}
  torch::Tensor forward(torch::Tensor x) {
    stash("skip", as_integer ? x.sign().to(torch::kLong) : x);
    return x;
  }
  bool as_integer;
};
TORCH_MODULE(Stash);

struct PopAddImpl : torch::nn::Module, Skippable {
  PopAddImpl() : Skippable({{}, {"skip"}}) {}
  torch::Tensor forward(torch::Tensor x) { return x + *pop("skip"); }
};
TORCH_MODULE(PopAdd);

// A copy on the CPU.
torch::Tensor on_cpu(const torch::Tensor& tensor) {
  return tensor.defined()
             ? tensor.detach().to(torch::kCPU, tensor.scalar_type(),
                                  /*non_blocking=*/false,
                                  /*copy=*/true)
             : tensor;
}

StepState collect(torch::nn::Module& module, torch::Tensor output,
                  const torch::Tensor& input) {
  StepState state;
  state.output = on_cpu(output);
  state.grads.push_back(on_cpu(input.grad()));
  for (const auto& parameter : module.parameters()) {
    state.grads.push_back(on_cpu(parameter.grad()));
  }
  for (const auto& buffer : module.buffers()) {
    state.buffers.push_back(on_cpu(buffer));
  }
  return state;
}

torch::Tensor loss_of(const torch::Tensor& output, int64_t rows) {
  // A sum over all rows divided by a constant: the same for any split.
  return output.pow(2).sum() / static_cast<double>(rows);
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  return !a.defined() || torch::equal(a, b);
}

}  // namespace

torch::nn::Sequential conv_model(double dropout) {
  using namespace torch::nn;
  Sequential model;
  model->push_back(Conv2d(Conv2dOptions(3, 6, 3).padding(1)));
  model->push_back(BatchNorm2d(6));
  model->push_back(ReLU());
  model->push_back(Dropout(dropout));
  model->push_back(Conv2d(Conv2dOptions(6, 4, 3).stride(2)));
  model->push_back(Dropout2d(dropout));
  model->push_back(Flatten());
  model->push_back(Linear(4 * 3 * 3, 5));
  model->to(torch::kDouble);
  return model;
}

torch::nn::Sequential skip_model() {
  using namespace torch::nn;
  Namespace outer, inner;
  Sequential model;
  Stash first(false), second(true);
  first->isolate(outer);
  second->isolate(inner);
  PopAdd pop_inner, pop_outer;
  pop_inner->isolate(inner);
  pop_outer->isolate(outer);
  model->push_back(first);
  model->push_back(Linear(4, 4));
  model->push_back(second);
  model->push_back(Linear(4, 4));
  model->push_back(pop_inner);
  model->push_back(Tanh());
  model->push_back(pop_outer);
  model->to(torch::kDouble);
  return model;
}

torch::nn::Sequential linear_model() {
  using namespace torch::nn;
  Sequential model;
  model->push_back(Linear(6, 8));
  model->push_back(Tanh());
  model->push_back(Linear(8, 8));
  model->push_back(Sigmoid());
  model->push_back(Linear(8, 3));
  model->push_back(Softplus());
  model->to(torch::kDouble);
  return model;
}

StepState training_step(torch::nn::Module& module, const Forward& forward,
                        const torch::Tensor& input) {
  module.zero_grad();
  auto x = input.detach().clone().to(device()).requires_grad_();
  auto output = forward(x);
  loss_of(output, input.size(0)).backward();
  return collect(module, output, x);
}

StepState plain_step(torch::nn::Sequential module, const torch::Tensor& input,
                     int64_t chunks) {
  module->to(reference_device());
  module->zero_grad();
  auto x = input.detach().clone().to(reference_device()).requires_grad_();
  auto pieces = x.chunk(chunks);
  std::vector<torch::Tensor> outputs;
  for (const auto& piece : pieces) outputs.push_back(module->forward(piece));
  for (std::size_t i = pieces.size(); i-- > 0;) {
    loss_of(outputs[i], input.size(0)).backward();
  }
  return collect(*module, torch::cat(outputs), x);
}

std::string difference(const StepState& a, const StepState& b) {
  if (!same_bits(a.output, b.output)) return "output";
  for (std::size_t k = 0; k < a.grads.size(); ++k) {
    if (!same_bits(a.grads[k], b.grads[k])) {
      return k == 0 ? "gradient of the input"
                    : "gradient of parameter " + std::to_string(k - 1);
    }
  }
  for (std::size_t k = 0; k < a.buffers.size(); ++k) {
    if (!same_bits(a.buffers[k], b.buffers[k])) {
      return "buffer " + std::to_string(k);
    }
  }
  return "";
}

double distance(const StepState& a, const StepState& b) {
  const auto between = [](const torch::Tensor& x, const torch::Tensor& y) {
    if (x.defined() != y.defined()) {
      return std::numeric_limits<double>::infinity();
    }
    return x.defined() && x.numel() > 0 ? (x - y).abs().max().item<double>()
                                        : 0.0;
  };
  double largest = between(a.output, b.output);
  for (std::size_t k = 0; k < a.grads.size(); ++k) {
    largest = std::max(largest, between(a.grads[k], b.grads[k]));
  }
  return largest;
}

}  // namespace gpipe::testing
