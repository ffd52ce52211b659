// Public: modules without memory.
#pragma once

#include <memory>

namespace gpipe {

class MetaScope;

// While it lives, modules that are built on this thread take no memory: their
// parameters and buffers are on LibTorch's meta device, where a tensor has a
// shape and a dtype, but no values. Building any model takes milliseconds, and
// its layers, parameters, and what it does to shapes can be asked for:
//
//   torch::nn::Sequential model = [] {
//     gpipe::MetaGuard meta;
//     return gpipe::models::transformer(options);  // of 84 billion parameters
//   }();
//   for (const auto& parameter : model->parameters()) n += parameter.numel();
//   std::cout << gpipe::summary(model, tokens);  // summary.h
//
// It acts on every tensor that is made without naming a device, as those in
// LibTorch's modules are; one that names a device has it. torch::tensor(values)
// stays on the CPU, since it has values. The generators of random numbers are
// left alone. (LibTorch's Module::to() cannot bring a module to the meta device
// or back from it, so this must be done when it is built.)
//
// In forward(), operators run on the meta device as on any other. LibTorch has
// many of their kernels in Python only; those are replaced by ours for as long
// as a program is linked with this, and an operator that is in none of them is
// tried on zeros, with the memory that its result takes for that moment.
//
// Threads: the guard is for the thread that made it, which must be the one that
// ends it. Guards may nest. The idea is that of torch.device("meta") as a
// context manager.
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
