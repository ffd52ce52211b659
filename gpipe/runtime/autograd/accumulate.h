// Passes gradients to autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <vector>

namespace gpipe::internal {

// Runs the autograd engine with one gradient of `grads` per edge of `edges`
// (see torch::autograd::impl::gradient_edge). As in any backward, the engine
// adds gradients to `.grad` of leaves, passes them on through the graphs of
// other tensors, and calls hooks. Undefined gradients are skipped.
//
// Throws whatever hooks and graphs throw. Threads: as Tensor::backward().
void accumulate(std::vector<torch::autograd::Edge> edges,
                std::vector<at::Tensor> grads);

}  // namespace gpipe::internal
