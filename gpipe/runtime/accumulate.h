// Hands gradients to autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <vector>

namespace gpipe {

// Runs the engine from a node that has `grads` to give to `edges` (see
// torch::autograd::impl::gradient_edge): they are added to `.grad` of leaves
// and go on through the graphs of other tensors, and hooks are called, as in
// any backward. Undefined ones are left out.
//
// Errors: those of hooks and graphs. Threads: as Tensor::backward().
void accumulate(std::vector<torch::autograd::Edge> edges,
                std::vector<at::Tensor> grads);

}  // namespace gpipe
