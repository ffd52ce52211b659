#include "gpipe/runtime/operators/parameter_casts.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>
#include <utility>

#include "gpipe/libtorch/node.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {
namespace {

thread_local ParameterCasts* current_casts = nullptr;

// The backward of a cast: casts the gradient to the type of the parameter.
struct Uncast : public torch::autograd::Node {
  Uncast(torch::autograd::edge_list edges, at::ScalarType dtype)
      : Node(std::move(edges)), dtype(dtype) {}
  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override {
    const at::Tensor& grad = grads.front();
    return {grad.defined() ? grad.to(dtype) : at::Tensor()};
  }
  std::string name() const override { return "gpipe::Uncast"; }

  const at::ScalarType dtype;
};

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

// Returns whether autocast is there for `device`, such as not for meta, and is
// enabled.
bool is_enabled(c10::DeviceType device) {
  const auto& all = at::autocast::_AUTOCAST_SUPPORTED_DEVICES;
  return std::ranges::find(all, device) != all.end() &&
         at::autocast::is_autocast_enabled(device);
}

constexpr std::size_t kSelf = 0, kDtype = 1, kLayout = 2, kDevice = 3,
                      kPinMemory = 4, kNonBlocking = 5, kMemoryFormat = 6,
                      kArguments = 7;  // of aten::_to_copy

// Returns whether autocast asks for a copy. Within its kernels autocast is
// disabled, and nothing but the type is given.
bool is_of_autocast(const torch::jit::Stack& stack) {
  const auto argument = [&](std::size_t k) -> const c10::IValue& {
    return torch::jit::peek(stack, k, kArguments);
  };
  for (const std::size_t k : {kLayout, kDevice, kPinMemory, kMemoryFormat}) {
    if (!argument(k).isNone()) return false;
  }
  if (argument(kDtype).isNone() || argument(kNonBlocking).toBool()) {
    return false;
  }
  const c10::DeviceType device = argument(kSelf).toTensor().device().type();
  return !is_enabled(device) && argument(kDtype).toScalarType() ==
                                    at::autocast::get_autocast_dtype(device);
}

// The interceptor of casts.
void share(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
           torch::jit::Stack* stack) {
  ParameterCasts* const casts = current_casts;
  if (!casts || !is_of_autocast(*stack) ||
      !casts->knows(torch::jit::peek(*stack, kSelf, kArguments).toTensor())) {
    return run_intercepted(kCellKey, op, keys, stack);
  }
  const at::Tensor self =
      torch::jit::peek(*stack, kSelf, kArguments).toTensor();
  const at::ScalarType dtype =
      torch::jit::peek(*stack, kDtype, kArguments).toScalarType();
  at::Tensor copy = casts->cast(self, dtype, [&] {
    const c10::NoGradGuard no_grad;
    torch::jit::Stack arguments = torch::jit::last(*stack, kArguments).vec();
    run_intercepted(kCellKey, op, keys, &arguments);
    return arguments.front().toTensor();
  });
  torch::jit::drop(*stack, kArguments);
  torch::jit::push(*stack, std::move(copy));
}

[[maybe_unused]] const bool casts_intercepted = [] {
  intercept(
      kCellKey,
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_to_copy", ""),
      c10::KernelFunction::makeFromBoxedFunction<&share>(),
      "gpipe: casts of parameters");
  return true;
}();

}  // namespace

void ParameterCasts::begin(const std::vector<at::Tensor>& parameters) {
  sources_.clear();
  for (const at::Tensor& each : parameters) {
    if (each.layout() != at::kStrided || !each.has_storage()) continue;
    c10::StorageImpl* const storage = each.storage().unsafeGetStorageImpl();
    sources_.emplace(storage, Source{each.storage().getWeakStorageImpl(), {}});
  }
}

std::vector<c10::Storage> ParameterCasts::hold() const {
  std::vector<c10::Storage> held;
  for (const auto& [storage, source] : sources_) {
    for (const Copy& each : source.copies) {
      if (auto memory = each.memory.lock())
        held.emplace_back(std::move(memory));
    }
  }
  return held;
}

bool ParameterCasts::knows(const at::Tensor& tensor) const {
  return tensor.layout() == at::kStrided && tensor.has_storage() &&
         !tensor.is_inference() &&
         sources_.count(tensor.storage().unsafeGetStorageImpl()) > 0;
}

at::Tensor ParameterCasts::alias_of(const Copy& copy) {
  auto memory = copy.memory.lock();
  if (!memory) return {};
  at::Tensor alias = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(memory)), copy.keys,
      c10::scalarTypeToTypeMeta(copy.dtype));
  c10::TensorImpl* const impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(copy.sizes, copy.copy_strides);
  impl->set_version_counter(copy.counter);
  return alias;
}

template <typename Make>
at::Tensor ParameterCasts::cast(const at::Tensor& tensor, at::ScalarType dtype,
                                Make make) {
  auto& copies = sources_.at(tensor.storage().unsafeGetStorageImpl()).copies;
  const auto known = std::ranges::find_if(copies, [&](const Copy& each) {
    return each.dtype == dtype && each.offset == tensor.storage_offset() &&
           tensor.sizes() == each.sizes && tensor.strides() == each.strides &&
           tensor.key_set() == each.source_keys &&
           tensor.scalar_type() == each.source_dtype;
  });
  at::Tensor copy;
  if (known != copies.end()) {
    if (known->version == version_of(tensor) &&
        known->copy_version == known->counter.current_version()) {
      copy = alias_of(*known);
    }
    if (!copy.defined()) copies.erase(known);
  }
  if (copy.defined()) {
    record_stream(copy, copy.device());
  } else {
    copy = make();
    if (copy.is_inference()) return copy;
    copies.push_back(
        {tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(),
         tensor.key_set(), tensor.scalar_type(), version_of(tensor), dtype,
         copy.storage().getWeakStorageImpl(), copy.strides().vec(),
         copy.key_set(), copy.unsafeGetTensorImpl()->version_counter(),
         version_of(copy)});
  }
  if (!c10::GradMode::is_enabled() || !tensor.requires_grad()) return copy;
  const NodePtr node = make_node<Uncast>(
      torch::autograd::edge_list{torch::autograd::impl::gradient_edge(tensor)},
      tensor.scalar_type());
  torch::autograd::create_gradient_edge(copy, node);
  return copy;
}

CastScope::CastScope(ParameterCasts& casts, const c10::Device& device)
    : outer_(std::exchange(current_casts,
                           is_enabled(device.type()) ? &casts : nullptr)) {}

CastScope::~CastScope() { current_casts = outer_; }

}  // namespace gpipe::internal
