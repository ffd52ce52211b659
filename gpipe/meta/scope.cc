#include "gpipe/meta/scope.h"

#include <ATen/Functions.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "gpipe/libtorch/tensors_in.h"
#include "gpipe/meta/kernels.h"
#include "gpipe/meta/ledger.h"

namespace gpipe {
namespace {

thread_local MetaScope* current_scope = nullptr;

void run(const c10::OperatorHandle& op, c10::DispatchKeySet,
         torch::jit::Stack* stack) {
  if (MetaScope* scope = MetaScope::current()) scope->divert(op, stack);
  internal::run_uncovered(internal::Interceptor::kMeta, op, stack);
}

[[maybe_unused]] const bool registered = [] {
  internal::intercept_all(internal::Interceptor::kMeta,
                          c10::KernelFunction::makeFromBoxedFunction<&run>(),
                          "gpipe: without memory");
  return true;
}();

bool returns_tensors(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return std::any_of(returns.begin(), returns.end(), [](const auto& each) {
    return each.type()->kind() == c10::TypeKind::TensorType ||
           each.type()->kind() == c10::TypeKind::ListType;
  });
}

}  // namespace

MetaScope::MetaScope(Extent extent)
    : extent_(extent),
      outer_(std::exchange(current_scope, this)),
      intercept_(internal::Interceptor::kMeta) {
  internal::link_meta_kernels();
}

MetaScope::~MetaScope() { current_scope = outer_; }

MetaScope* MetaScope::current() { return current_scope; }

void MetaScope::divert(const c10::OperatorHandle& op,
                       torch::jit::Stack* stack) {
  const auto& declared = op.schema().arguments();
  const std::size_t first = stack->size() - declared.size();
  bool any = false, any_on_meta = false;
  for (std::size_t k = first; k < stack->size(); ++k) {
    internal::for_each_tensor((*stack)[k], [&](const at::Tensor& tensor) {
      any = true;
      any_on_meta = any_on_meta || tensor.is_meta();
    });
  }
  const bool all = extent_ == Extent::kAllTensors;
  if (any && (!all || (!any_on_meta && !returns_tensors(op)))) return;
  for (std::size_t k = 0; k < declared.size(); ++k) {
    c10::IValue& argument = (*stack)[first + k];
    if (declared[k].name() == "device") {
      if (!any) {
        divert_factory(op, argument);
      } else if (argument.isDevice()) {
        argument = c10::Device(at::kMeta);
      }
    } else if (any) {
      argument = internal::with_tensors(
          argument, [&](const at::Tensor& tensor) { return stand_in(tensor); });
    }
  }
}

void MetaScope::divert_factory(const c10::OperatorHandle& op,
                               c10::IValue& device) {
  // A caller that asks for empty memory on a named device may write to its
  // address, as torch::tensor() does.
  const bool may_be_kept = extent_ == Extent::kNewTensors ||
                           op.schema().name().rfind("aten::empty", 0) == 0;
  if (device.isNone() || !may_be_kept) device = c10::Device(at::kMeta);
}

at::Tensor MetaScope::stand_in(const at::Tensor& tensor) {
  // Wrapped numbers stay: they decide about the result's dtype by other rules
  // than tensors do.
  if (tensor.is_meta() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    return tensor;
  }
  auto& [original, substitute] = stand_ins_[tensor.unsafeGetTensorImpl()];
  if (!original.defined()) {
    original = tensor;
    const MetaLedgerPause pause;
    const auto options =
        at::TensorOptions().dtype(tensor.dtype()).device(at::kMeta);
    substitute =
        tensor.layout() == at::kStrided
            ? at::empty_strided(tensor.sizes(), tensor.strides(), options)
            : at::empty(tensor.sizes(), options);
    substitute.set_requires_grad(tensor.requires_grad());
  }
  return substitute;
}

}  // namespace gpipe
