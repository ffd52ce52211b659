// The kernels of the simulated accelerators. Most operators are enqueued by
// call.h; those that only change a tensor's layout or memory are here.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_foreach_copy_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bernoulli_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <cstddef>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/testing/simulated/call.h"
#include "gpipe/testing/simulated/current.h"
#include "gpipe/testing/simulated/generator.h"
#include "gpipe/testing/simulated/happens_before.h"
#include "gpipe/testing/simulated/memory.h"
#include "gpipe/testing/simulated/simulation.h"
#include "gpipe/testing/simulated/tensor_memory.h"

namespace gpipe::simulated {
namespace {

using c10::IValue;
using torch::jit::Stack;

c10::OperatorHandle operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

// LibTorch calls these operators on an accelerator without its own convolution.
void convolution(const c10::OperatorHandle&, Stack* stack) {
  static const auto op = operator_named("aten::convolution");
  enqueue_call(op, stack);
}

void convolution_backward(const c10::OperatorHandle&, Stack* stack) {
  static const auto op = operator_named("aten::convolution_backward");
  // The sizes of the bias are the fourth argument.
  constexpr std::size_t kArguments = 10, kBiasSizes = 3;
  const int64_t channels =
      torch::jit::peek(*stack, 0, kArguments).toTensor().size(1);
  stack->insert(
      stack->end() - static_cast<std::ptrdiff_t>(kArguments - kBiasSizes),
      IValue(c10::List<int64_t>({channels})));
  enqueue_call(op, stack);
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<c10::Device> device,
                 std::optional<bool>,
                 std::optional<at::MemoryFormat> memory_format) {
  const DeviceScope scope(device && device->has_index() ? device->index()
                                                        : current_device());
  return at::detail::empty_generic(sizes, &Memory::get(),
                                   c10::DispatchKeySet(c10::DispatchKey::HPU),
                                   c10::dtype_or_default(dtype), memory_format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>,
                         std::optional<c10::Device> device,
                         std::optional<bool>) {
  const DeviceScope scope(device && device->has_index() ? device->index()
                                                        : current_device());
  return at::detail::empty_strided_generic(
      sizes, strides, &Memory::get(),
      c10::DispatchKeySet(c10::DispatchKey::HPU), c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef sizes,
                      c10::SymIntArrayRef strides,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
      offset ? std::make_optional(offset->expect_int()) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef sizes) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef sizes,
                         c10::SymIntArrayRef strides) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(sizes),
                                    C10_AS_INTARRAYREF_SLOW(strides));
}

// Resizes a tensor in place. If the memory is too small, new memory replaces it
// and the contents are lost.
const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef sizes,
                         std::optional<at::MemoryFormat>) {
  const auto target = C10_AS_INTARRAYREF_SLOW(sizes);
  const std::size_t bytes =
      (static_cast<std::size_t>(self.storage_offset()) +
       static_cast<std::size_t>(c10::multiply_integers(target))) *
      self.itemsize();
  c10::Storage storage = self.storage();
  if (storage.nbytes() < bytes) {
    const DeviceScope scope(self.device().index());
    storage.set_data_ptr(Memory::get().allocate(bytes));
    storage.set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(target);
  return self;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  Memory::get().recordStream(self.storage().data_ptr(), stream);
}

// Raises the versions of tensors that an operator on lists has changed, as
// CUDA's kernels do, and not only autograd's.
void raise_versions(at::TensorList changed) {
  for (const at::Tensor& each : changed) {
    each.unsafeGetTensorImpl()->bump_version();
  }
}

// Copies a list of tensors with one launch, as CUDA does for tensors of one
// device and dtype.
void foreach_copy(at::TensorList targets, at::TensorList sources,
                  bool non_blocking) {
  std::vector<Access> accesses;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (std::size_t k = 0; k < targets.size(); ++k) {
    const at::Tensor &from = sources[k], &to = targets[k];
    if (from.device() != targets[0].device() ||
        to.device() != targets[0].device() ||
        from.scalar_type() != targets[0].scalar_type() ||
        to.scalar_type() != targets[0].scalar_type()) {
      at::native::foreach_tensor_copy_list_kernel_slow_(targets, sources,
                                                        non_blocking);
      return;
    }
    accesses.push_back(access(from, false));
    accesses.push_back(access(to, true));
    copies.emplace_back(host_alias(from), host_alias(to));
  }
  if (copies.empty()) return;
  const DeviceScope scope(targets[0].device().index());
  Simulation::get().enqueue(
      stream_of(targets[0]),
      {"aten::_foreach_copy_", std::move(accesses), [copies] {
         for (const auto& [from, to] : copies) to.copy_(from);
       }});
  raise_versions(targets);
}

// Enqueues an operator on a list of tensors as one launch, as CUDA does for
// tensors of one device and dtype. (CUDA takes a launch per some 64 tensors.)
void foreach_call(const c10::OperatorHandle& op, Stack* stack) {
  const std::size_t arguments = op.schema().arguments().size();
  const auto tensors = torch::jit::peek(*stack, 0, arguments).toTensorVector();
  for (const at::Tensor& each : tensors) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        each.dtype() == tensors.front().dtype(), op.operator_name(),
        " takes tensors of one dtype on a simulated device, but they have ",
        each.dtype(), " and ", tensors.front().dtype());
  }
  if (tensors.empty()) {
    torch::jit::drop(*stack, arguments);
  } else {
    enqueue_call(op, stack);
    raise_versions(tensors);
  }
}

// Implements fused dropout, which draws from the device's default generator, as
// CUDA's.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input,
                                                  double p,
                                                  std::optional<bool> train) {
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  if (train && !*train) {
    return {input.clone(), mask.fill_(true)};
  }
  mask.bernoulli_(1 - p, default_generator(input.device().index()));
  return {input.mul(mask).mul_(p < 1 ? 1 / (1 - p) : 0), mask};
}

}  // namespace

TORCH_LIBRARY_IMPL(_, HPU, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&enqueue_call>());
}

TORCH_LIBRARY_IMPL(aten, HPU, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", as_strided);
  library.impl("view", view);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("resize_", resize);
  library.impl("record_stream", record_stream);
  library.impl("native_dropout", native_dropout);
  library.impl("_foreach_copy_", foreach_copy);
  for (const char* name :
       {"_foreach_sub_.ScalarList", "_foreach_mul_.ScalarList",
        "_foreach_div_.ScalarList"}) {
    library.impl(name,
                 torch::CppFunction::makeFromBoxedFunction<&foreach_call>());
  }
  library.impl("convolution_overrideable",
               torch::CppFunction::makeFromBoxedFunction<&convolution>());
  library.impl(
      "convolution_backward_overrideable",
      torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  // For these operators the CPU has a kernel of its own. Without these entries
  // LibTorch would use other operators, which round differently or need more
  // memory.
  for (const char* name :
       {"addr", "addr.out", "linalg__powsum", "mish_backward", "mse_loss",
        "native_group_norm", "native_layer_norm", "silu_backward",
        "smooth_l1_loss"}) {
    library.impl(name,
                 torch::CppFunction::makeFromBoxedFunction<&enqueue_call>());
  }
}

}  // namespace gpipe::simulated
