#include "gpipe/meta/trial.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cstddef>
#include <string>

#include "gpipe/libtorch/tensors_in.h"

namespace gpipe::internal {
namespace {

using c10::IValue;

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

// Returns zeros in the layout of `tensor`. The pages are only allocated when
// they are written, so reading them takes no memory.
at::Tensor zeros_for(const at::Tensor& tensor) {
  const auto options =
      at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  const std::size_t bytes = at::detail::computeStorageNbytes(
      tensor.sizes(), tensor.strides(), tensor.itemsize());
  if (bytes == 0) return at::empty(tensor.sizes(), options);
  void* const pages =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  TORCH_CHECK(pages != MAP_FAILED, "no address space for ", bytes,
              " bytes of zeros");
  return at::for_blob(pages, tensor.sizes())
      .strides(tensor.strides())
      .deleter([bytes](void* address) { munmap(address, bytes); })
      .options(options)
      .allocator(c10::GetAllocator(c10::kCPU))
      .resizeable_storage()
      .make_tensor();
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
    return tensor.is_meta() ? zeros_for(tensor) : tensor;
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

  // An output that is also an argument is returned as that argument, resized.
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

void refuse_values(const c10::OperatorHandle& op, torch::jit::Stack*) {
  const bool is_shape = op.hasTag(at::Tag::dynamic_output_shape);
  const std::string& name = op.operator_name().name;
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, name == "aten::_local_scalar_dense" ? "item()" : name,
      is_shape ? ": the shape of the result depends on values"
               : ": reads a value",
      ", and tensors on the meta device have none. Use operators without "
      "values, such as torch::where() or masked_fill()");
}

}  // namespace gpipe::internal
