// Layers that pass a mask on, for tests of unsplit elements.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <tuple>

namespace gpipe::testing {

// Returns 2 x + mask, and the mask as it came.
struct AddMaskImpl : torch::nn::Module {
  std::tuple<torch::Tensor, torch::Tensor> forward(
      std::tuple<torch::Tensor, torch::Tensor> value) {
    auto& [x, mask] = value;
    return {x * 2 + mask, mask};
  }
};
TORCH_MODULE(AddMask);

// Returns x + mask.
struct EndMaskImpl : torch::nn::Module {
  torch::Tensor forward(std::tuple<torch::Tensor, torch::Tensor> value) {
    return std::get<0>(value) + std::get<1>(value);
  }
};
TORCH_MODULE(EndMask);

}  // namespace gpipe::testing
