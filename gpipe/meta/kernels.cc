#include "gpipe/meta/kernels.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/op_registration.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/libtorch/registration.h"
#include "gpipe/meta/convolution.h"
#include "gpipe/meta/trial.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
using std::optional;

// ---- Operators that are frequent or large: their kernels never take memory.

using Three = std::tuple<Tensor, Tensor, Tensor>;

// Statistics are float for half-precision inputs.
at::TensorOptions statistics_of(const Tensor& input) {
  const auto dtype = c10::typeMetaToScalarType(input.dtype());
  return input.options().dtype(c10::isReducedFloatingType(dtype) ? at::kFloat
                                                                 : dtype);
}

Three batch_norm(const Tensor& input, const optional<Tensor>&,
                 const optional<Tensor>&, const optional<Tensor>&,
                 const optional<Tensor>&, bool training, double, double) {
  const int64_t channels = training ? input.size(1) : 0;
  return {at::empty_like(input), at::empty({channels}, statistics_of(input)),
          at::empty({channels}, statistics_of(input))};
}

Three batch_norm_backward(const Tensor&, const Tensor& input,
                          const optional<Tensor>& weight,
                          const optional<Tensor>&, const optional<Tensor>&,
                          const optional<Tensor>&, const optional<Tensor>&,
                          bool, double, std::array<bool, 3> wanted) {
  const auto options =
      weight && weight->defined() ? weight->options() : input.options();
  return {wanted[0] ? at::empty_like(input) : Tensor(),
          wanted[1] ? at::empty({input.size(1)}, options) : Tensor(),
          wanted[2] ? at::empty({input.size(1)}, options) : Tensor()};
}

Tensor relu(const Tensor& input) { return at::empty_like(input); }

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const auto sizes =
      at::infer_size(at::infer_size(condition.sizes(), a.sizes()), b.sizes());
  return at::empty(sizes, at::TensorOptions().device(at::kMeta).dtype(
                              at::result_type(a, b)));
}

Tensor index_select(const Tensor& input, int64_t dim, const Tensor& index) {
  std::vector<int64_t> sizes = input.sizes().vec();
  if (!sizes.empty())
    sizes[at::maybe_wrap_dim(dim, input.dim())] = index.numel();
  return at::empty(sizes, input.options());
}

Three layer_norm_backward(const Tensor&, const Tensor& input,
                          at::SymIntArrayRef, const Tensor&, const Tensor&,
                          const optional<Tensor>& weight,
                          const optional<Tensor>& bias,
                          std::array<bool, 3> wanted) {
  const auto like = [](bool is_wanted, const optional<Tensor>& tensor) {
    return is_wanted && tensor && tensor->defined() ? at::empty_like(*tensor)
                                                    : Tensor();
  };
  return {like(wanted[0], input), like(wanted[1], weight),
          like(wanted[2], bias)};
}

Tensor embedding_backward(const Tensor& gradient, const Tensor&,
                          c10::SymInt rows, c10::SymInt, bool) {
  return at::empty({rows.expect_int(), gradient.size(-1)}, gradient.options());
}

Tensor adaptive_pool(const Tensor& input, at::SymIntArrayRef sizes) {
  std::vector<int64_t> output = input.sizes().vec();
  output[output.size() - 2] = sizes[0].expect_int();
  output[output.size() - 1] = sizes[1].expect_int();
  return at::empty(output, input.options());
}

Tensor adaptive_pool_backward(const Tensor&, const Tensor& input) {
  return at::empty_like(input);
}

// The CPU's kernel refuses weights whose sum is 0.
Tensor multinomial(const Tensor& weights, int64_t samples, bool,
                   optional<at::Generator>) {
  std::vector<int64_t> sizes = weights.sizes().vec();
  TORCH_CHECK_VALUE(!sizes.empty(), "multinomial: weights without a dimension");
  sizes.back() = samples;
  return at::empty(sizes, weights.options().dtype(at::kLong));
}

// Other tensors than the same one are taken to have other values. So attention
// sees whether it is self-attention.
bool equal(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_alias_of(b) && a.storage_offset() == b.storage_offset();
}

// ---- Fused attention, as on a CPU. It keeps far less for backward than the
// plain operators that LibTorch would run on an unknown device.

std::tuple<Tensor, Tensor> fused_attention(const Tensor& query, const Tensor&,
                                           const Tensor&, double, bool,
                                           const optional<Tensor>&,
                                           optional<double>) {
  const int64_t batch = query.size(0), heads = query.size(1),
                length = query.size(2);
  return {
      at::empty_like(query),
      at::empty({batch, length, heads}, statistics_of(query)).transpose(1, 2)};
}

Three fused_attention_backward(const Tensor&, const Tensor& query,
                               const Tensor& key, const Tensor& value,
                               const Tensor&, const Tensor&, double, bool,
                               const optional<Tensor>&, optional<double>) {
  return {at::empty_like(query), at::empty_like(key), at::empty_like(value)};
}

// Returns whether a CPU would use the fused kernel. LibTorch asks the device.
bool is_fused(const Tensor& query, const Tensor& key, const Tensor& value,
              const optional<Tensor>& mask, double dropout) {
  const auto fits = [&](const Tensor& tensor) {
    return tensor.dim() == 4 && tensor.size(3) == query.size(3) &&
           tensor.stride(3) == 1;
  };
  return dropout == 0 && fits(query) && fits(key) && fits(value) &&
         query.size(1) == key.size(1) && query.numel() > 0 &&
         (!mask || !mask->defined() || !mask->requires_grad());
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const optional<Tensor>& mask, double dropout, bool causal,
                 optional<double> scale, bool grouped) {
  if (!is_fused(query, key, value, mask, dropout)) {
    return std::get<0>(at::_scaled_dot_product_attention_math(
        query, key, value, mask, dropout, causal, /*dropout_mask=*/{}, scale,
        grouped));
  }
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
      query, key, value, dropout, causal, mask, scale));
}

// ---- Registration.

// Registers `kernel`, unless LibTorch has no such operator or has a kernel.
void add(const c10::OperatorName& name, c10::KernelFunction kernel,
         c10::DispatchKey key = c10::DispatchKey::Meta) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto op = dispatcher.findSchema(name);
  if (!op || op->hasKernelForDispatchKey(key)) return;
  keep_registered(dispatcher.registerImpl(name, key, std::move(kernel),
                                          /*cpp_signature=*/std::nullopt,
                                          /*inferred_function_schema=*/nullptr,
                                          "gpipe: shapes on the meta device"));
}

template <typename Kernel>
void add_exact(const char* name, const char* overload, Kernel* kernel) {
  add({name, overload},
      c10::KernelFunction::makeFromUnboxedRuntimeFunction(kernel));
}

// Registers a kernel for a composite operator, both below and above autograd.
template <typename Kernel>
void add_composite(const char* name, Kernel* kernel) {
  for (const auto key :
       {c10::DispatchKey::Meta, c10::DispatchKey::AutogradMeta}) {
    add({name, ""}, c10::KernelFunction::makeFromUnboxedRuntimeFunction(kernel),
        key);
  }
}

bool is_composite(const c10::OperatorHandle& op) {
  for (const auto key :
       {c10::DispatchKey::CompositeImplicitAutograd,
        c10::DispatchKey::CompositeExplicitAutograd,
        c10::DispatchKey::CompositeExplicitAutogradNonFunctional}) {
    if (op.hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

// Registers run_on_zeros() or refuse_values() for all other operators that only
// have a CPU kernel.
void add_others() {
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
        is_composite(*op)) {
      continue;
    }
    const bool needs_values = op->hasTag(at::Tag::data_dependent_output) ||
                              op->hasTag(at::Tag::dynamic_output_shape);
    add(name,
        needs_values
            ? c10::KernelFunction::makeFromBoxedFunction<&refuse_values>()
            : c10::KernelFunction::makeFromBoxedFunction<&run_on_zeros>());
  }
}

// Registration runs before main(), since LibTorch reads its tables without a
// lock.
[[maybe_unused]] const bool registered = [] {
  add_exact("aten::convolution_overrideable", "", &meta_convolution);
  add_exact("aten::convolution_backward_overrideable", "",
            &meta_convolution_backward);
  add_exact("aten::native_batch_norm", "", &batch_norm);
  add_exact("aten::native_batch_norm_backward", "", &batch_norm_backward);
  add_exact("aten::relu", "", &relu);
  add_exact("aten::where", "self", &where);
  add_exact("aten::index_select", "", &index_select);
  add_exact("aten::native_layer_norm_backward", "", &layer_norm_backward);
  add_exact("aten::embedding_dense_backward", "", &embedding_backward);
  add_exact("aten::_adaptive_avg_pool2d", "", &adaptive_pool);
  add_exact("aten::_adaptive_avg_pool2d_backward", "", &adaptive_pool_backward);
  add_exact("aten::_scaled_dot_product_flash_attention_for_cpu", "",
            &fused_attention);
  add_exact("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "",
            &fused_attention_backward);
  add_exact("aten::multinomial", "", &multinomial);
  add_exact("aten::equal", "", &equal);
  add_composite("aten::scaled_dot_product_attention", &attention);
  add_others();
  return true;
}();

}  // namespace

void link_meta_kernels() {}

}  // namespace gpipe::internal
