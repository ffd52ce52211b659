#include "gpipe/meta/trial.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <utility>

#include "gpipe/dispatch/tensors_in.h"

namespace gpipe {
namespace {

using c10::IValue;

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

at::Tensor zeros_for(const at::Tensor& tensor, bool written) {
  const auto options =
      at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  if (written) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), options).zero_();
  }
  const at::Tensor zero = at::zeros({}, options);
  return tensor.numel() == 0 ? at::empty(tensor.sizes(), options)
                             : zero.expand(tensor.sizes());
}

at::Tensor on_meta(const at::Tensor& tensor) {
  return at::empty_strided(
      tensor.sizes(), tensor.strides(),
      at::TensorOptions().dtype(tensor.dtype()).device(at::kMeta));
}

IValue at_host(const IValue& value, const c10::Argument& argument) {
  if (value.isDevice()) return c10::Device(at::kCPU);
  if (argument.name() == "generator") {
    return at::make_generator<at::CPUGeneratorImpl>();
  }
  return with_tensors(value, [&](const at::Tensor& tensor) {
    return tensor.is_meta() ? zeros_for(tensor, is_written(argument)) : tensor;
  });
}

}  // namespace

void run_on_zeros(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto& schema = op.schema();
  const auto arguments =
      torch::jit::last(*stack, schema.arguments().size()).vec();
  torch::jit::drop(*stack, arguments.size());

  torch::jit::Stack trial;
  for (std::size_t k = 0; k < arguments.size(); ++k) {
    trial.push_back(at_host(arguments[k], schema.arguments()[k]));
  }
  const torch::jit::Stack given = trial;
  op.callBoxed(trial);

  // An argument that is returned is returned itself, in its new size.
  std::size_t written = 0;
  for (std::size_t k = 0; k < trial.size(); ++k) {
    const auto* alias = schema.returns()[k].alias_info();
    if (!alias || !alias->isWrite()) {
      stack->push_back(with_tensors(trial[k], on_meta));
      continue;
    }
    while (!is_written(schema.arguments()[written])) ++written;
    const at::Tensor& result = given[written].toTensor();
    const at::Tensor& argument = arguments[written].toTensor();
    if (argument.sizes() != result.sizes()) argument.resize_(result.sizes());
    stack->push_back(argument);
    ++written;
  }
}

}  // namespace gpipe
