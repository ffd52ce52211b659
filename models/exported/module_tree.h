// Modules that hold the weights of a layer under Python's names.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace gpipe::exported {

// Registers `tensor` in `root` as the parameter or buffer `name`, such as
// "layers.3.mlp.weight", with a module for each name before a dot. Throws
// c10::Error if a part of the name is empty.
void register_weight(torch::nn::Module& root, const std::string& name,
                     const at::Tensor& tensor, bool is_parameter,
                     bool requires_grad);

// Registers `child` as the module `last` of the module `name` in `root`.
// Throws c10::Error if there is such a module.
void register_child(torch::nn::Module& root, const std::string& name,
                    const std::string& last,
                    std::shared_ptr<torch::nn::Module> child);
void unregister_child(torch::nn::Module& root, const std::string& name,
                      const std::string& last);

// A BatchNorm with running statistics. Registered as a module of LibTorch, so
// that a pipeline knows its buffers: it restores them after a recompute, and
// defers their updates if GPipeOptions::deferred_batch_norm is set.
class NormModule {
 public:
  // Registers the module `name` in `root`. `channels`: of the running
  // statistics.
  NormModule(torch::nn::Module& root, const std::string& name, int64_t channels,
             bool affine, double momentum, double epsilon);

  // Gives the parameter or buffer `name` ("running_mean") the values of
  // `tensor`. Returns the module's tensor, which shares their memory.
  at::Tensor set(const std::string& name, const at::Tensor& tensor,
                 bool requires_grad);

  bool is_training() const { return module_->is_training(); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

}  // namespace gpipe::exported
