// Two layers with a skip between them, for tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "gpipe/skip.h"

namespace gpipe::benchmarks {

// A layer that stashes its input as "skip" and returns it.
struct StashImpl : torch::nn::Module, Skippable {
  StashImpl() : Skippable({{"skip"}, {}}) {}
  at::Tensor forward(at::Tensor x) {
    stash("skip", x);
    return x;
  }
};
TORCH_MODULE(Stash);

// A layer that adds the stashed tensor to its input.
struct AddImpl : torch::nn::Module, Skippable {
  AddImpl() : Skippable({{}, {"skip"}}) {}
  at::Tensor forward(at::Tensor x) { return x + *pop("skip"); }
};
TORCH_MODULE(Add);

}  // namespace gpipe::benchmarks
