// Builds modules without allocating memory.
#pragma once

#include <memory>

namespace gpipe {

class MetaScope;

// A scope in which modules built on this thread take no memory. Their
// parameters and buffers are on LibTorch's meta device, where a tensor has a
// shape and a dtype, but no values. Building any model takes milliseconds, and
// its layers, parameters and output shapes can be inspected:
//
//   torch::nn::Sequential model = [] {
//     gpipe::MetaGuard meta;
//     return gpipe::models::transformer(options);  // of 84 billion parameters
//   }();
//   for (const auto& parameter : model->parameters()) n += parameter.numel();
//   std::cout << gpipe::summary(model, tokens);  // summary.h
//
// The guard acts on every tensor that is created without a device, as the
// tensors of LibTorch's modules are. A tensor that is created with a device
// stays on that device. torch::tensor({1, 2}) stays on the CPU, since it has
// values; torch::tensor(1) is made by an operator, and does not. Random
// generators are not touched. LibTorch's Module::to() cannot move a module to
// the meta device or back, so a module must be built there.
//
// In forward(), operators run on the meta device as on any other device.
// LibTorch has many of these kernels in Python only. A program that links this
// target uses gpipe's kernels instead. An operator that neither has is run on
// zeros on the CPU; during that run its result takes memory. equal() returns
// whether both tensors are the same memory, as in self-attention.
//
// Throws c10::NotImplementedError, from the operator, if a value is read
// (item()), or if the shape of a result depends on values (nonzero,
// masked_select, unique, indexing by a mask).
//
// Threads: the guard acts on the thread that made it, and that thread must
// destroy it. Guards may nest. The idea is torch.device("meta") as a context
// manager.
class MetaGuard {
 public:
  MetaGuard();
  ~MetaGuard();
  MetaGuard(const MetaGuard&) = delete;
  MetaGuard& operator=(const MetaGuard&) = delete;

 private:
  std::unique_ptr<MetaScope> scope_;
};

}  // namespace gpipe
