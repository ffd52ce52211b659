#include "models/exported/module_tree.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/batchnorm.h>

#include <cstddef>
#include <utility>

namespace gpipe::exported {
namespace {

// Returns the module that holds `name`, and the last part of the name. Makes
// the modules before it.
std::pair<torch::nn::Module*, std::string> holder_of(torch::nn::Module& root,
                                                     const std::string& name) {
  torch::nn::Module* module = &root;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t dot = name.find('.', begin);
    if (dot == std::string::npos) return {module, name.substr(begin)};
    const std::string part = name.substr(begin, dot - begin);
    const auto children = module->named_children();
    const auto* child = children.find(part);
    module = child ? child->get()
                   : module
                         ->register_module(
                             part, std::make_shared<torch::nn::Module>(part))
                         .get();
    begin = dot + 1;
  }
}

}  // namespace

void register_weight(torch::nn::Module& root, const std::string& name,
                     const at::Tensor& tensor, bool is_parameter,
                     bool requires_grad) {
  const auto [module, last] = holder_of(root, name);
  if (is_parameter) {
    module->register_parameter(last, tensor, requires_grad);
  } else {
    module->register_buffer(last, tensor);
  }
}

void register_child(torch::nn::Module& root, const std::string& name,
                    const std::string& last,
                    std::shared_ptr<torch::nn::Module> child) {
  holder_of(root, name + "." + last)
      .first->register_module(last, std::move(child));
}

void unregister_child(torch::nn::Module& root, const std::string& name,
                      const std::string& last) {
  holder_of(root, name + "." + last).first->unregister_module(last);
}

NormModule::NormModule(torch::nn::Module& root, const std::string& name,
                       int64_t channels, bool affine, double momentum,
                       double epsilon) {
  // The number of dimensions only matters to its own forward().
  auto norm = std::make_shared<torch::nn::BatchNorm2dImpl>(
      torch::nn::BatchNorm2dOptions(channels)
          .affine(affine)
          .momentum(momentum)
          .eps(epsilon));
  const auto [module, last] = holder_of(root, name);
  module->register_module(last, norm);
  module_ = std::move(norm);
}

at::Tensor NormModule::set(const std::string& name, const at::Tensor& tensor,
                           bool requires_grad) {
  const auto parameters = module_->named_parameters(/*recurse=*/false);
  const auto buffers = module_->named_buffers(/*recurse=*/false);
  const at::Tensor* found = parameters.find(name);
  if (!found) found = buffers.find(name);
  TORCH_INTERNAL_ASSERT(found, "a BatchNorm has no '", name, "'");
  const c10::NoGradGuard no_grad;
  at::Tensor own = *found;
  own.set_data(tensor);
  own.set_requires_grad(requires_grad);
  return own;
}

}  // namespace gpipe::exported
