// Gradients of torchvision's operators. Its C++ library has an operator
// _NAME_backward for each differentiable NAME, but registers the connection
// between both in Python only (torchvision 0.29).
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

#include "gpipe/libtorch/node.h"

namespace gpipe::exported {
namespace {

using c10::IValue;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::jit::Stack;

variable_list tensors_in(const Stack& arguments) {
  variable_list tensors;
  for (const IValue& each : arguments) {
    if (each.isTensor()) tensors.push_back(each.toTensor());
  }
  return tensors;
}

// The backward of one call of an operator. Its outputs are the gradients of
// those arguments that are tensors, in order.
class Backward : public torch::autograd::Node {
 public:
  Backward(const c10::OperatorHandle& forward, const Stack& arguments)
      : Node(torch::autograd::collect_next_edges(tensors_in(arguments))),
        forward_(forward) {
    for (const IValue& each : arguments) {
      const bool is_tensor = each.isTensor();
      arguments_.push_back(is_tensor ? IValue() : each);
      tensors_.push_back(
          is_tensor ? SavedVariable(each.toTensor(), /*is_output=*/false)
                    : SavedVariable());
    }
    sizes_ = arguments.at(0).toTensor().sizes().vec();
  }

  // Keeps the second result of the forward, which has no gradient.
  void keep(const at::Tensor& indices) {
    indices_ = SavedVariable(indices, /*is_output=*/false);
  }

  // Threads: any, as several threads may call backward on parts of one graph.
  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                                forward_.operator_name(),
                                " has no gradient of its gradient");
    variable_list results(num_outputs());
    if (!grads.at(0).defined()) return results;
    const auto& name = forward_.operator_name().name;
    const std::size_t colons = name.find("::") + 2;
    const auto backward = c10::Dispatcher::singleton().findSchemaOrThrow(
        (name.substr(0, colons) + "_" + name.substr(colons) + "_backward")
            .c_str(),
        "");
    Stack stack;
    for (const c10::Argument& each : backward.schema().arguments()) {
      stack.push_back(argument(each.name(), grads[0]));
    }
    backward.callBoxed(stack);
    for (std::size_t k = 0; k < stack.size(); ++k) {
      results.at(k) = stack[k].toTensor();
    }
    return results;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& each : tensors_) each.reset_data();
    indices_.reset_data();
  }

 private:
  // Returns an argument of the backward: the gradient, an argument of the
  // forward by its name, a size of the first one, or the second result.
  IValue argument(const std::string& name, const at::Tensor& grad) const {
    if (name == "grad") return grad;
    if (const auto place = forward_.schema().argumentIndexWithName(name)) {
      return forward_.schema().arguments()[*place].type()->kind() ==
                     c10::TypeKind::TensorType
                 ? IValue(tensors_[*place].unpack())
                 : arguments_[*place];
    }
    const char* const names[] = {"batch_size", "channels", "height", "width"};
    for (std::size_t k = 0; k < std::size(names); ++k) {
      if (name == names[k]) return sizes_.at(k);
    }
    return indices_.unpack();
  }

  const c10::OperatorHandle forward_;
  std::vector<IValue> arguments_;  // None for a tensor
  std::vector<SavedVariable> tensors_;
  std::vector<int64_t> sizes_;  // of the first argument
  SavedVariable indices_;
};

// Calls the operator, and connects its first result to the backward.
void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
          Stack* stack) {
  const auto count =
      static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  const Stack arguments(stack->end() - count, stack->end());
  decltype(internal::make_node<Backward>(op, arguments)) backward;
  const variable_list tensors = tensors_in(arguments);
  const auto requires_grad = [](const at::Tensor& each) {
    return each.requires_grad();
  };
  if (at::GradMode::is_enabled() &&
      std::ranges::any_of(tensors, requires_grad)) {
    backward = internal::make_node<Backward>(op, arguments);
  }
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }
  if (!backward) return;
  const std::size_t results = op.schema().returns().size();
  if (results > 1) backward->keep(stack->back().toTensor());
  torch::autograd::set_history((stack->end() - results)->toTensor(), backward);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvision, Autograd, library) {
  for (const char* name : {"deform_conv2d", "ps_roi_align", "ps_roi_pool",
                           "roi_align", "roi_pool"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&call>());
  }
}

}  // namespace gpipe::exported
