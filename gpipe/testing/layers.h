// Makes layers of any signature from functions.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <utility>

namespace gpipe::testing {

// A layer that calls a function.
template <typename Output, typename Input>
struct FunctionLayer : torch::nn::Module {
  using Function = std::function<Output(Input)>;
  explicit FunctionLayer(Function function) : function(std::move(function)) {}
  Output forward(Input input) { return function(std::move(input)); }
  Function function;
};

// Returns a layer: layer(f) for tensors, layer<Output, Input>(f) for other
// values.
template <typename Output = torch::Tensor, typename Input = torch::Tensor,
          typename Function>
torch::nn::AnyModule layer(Function function) {
  return torch::nn::AnyModule(
      std::make_shared<FunctionLayer<Output, Input>>(std::move(function)));
}

// Returns a Linear from 3 to 3 in float64.
inline torch::nn::Linear double_linear() {
  torch::nn::Linear module(3, 3);
  module->to(torch::kDouble);
  return module;
}

}  // namespace gpipe::testing
