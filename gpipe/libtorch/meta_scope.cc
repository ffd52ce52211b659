#include "gpipe/libtorch/meta_scope.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/op_registration.h>
#include <ATen/core/stack.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/libtorch/dispatcher.h"
#include "gpipe/libtorch/meta_ledger.h"
#include "gpipe/runtime/device/memory_kind.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
using c10::IValue;
using std::optional;
using Three = std::tuple<Tensor, Tensor, Tensor>;

// ---- Shapes of results by running the CPU's kernel.

// Returns zeros in the layout of `tensor`. The pages are only allocated when
// they are written, so reading them takes no memory.
Tensor zeros_for(const Tensor& tensor) {
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

Tensor on_meta(const Tensor& tensor) {
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

// A kernel for the meta device for any operator that has a CPU kernel and whose
// result shapes do not depend on values. It calls the CPU kernel with zeros and
// returns meta tensors with the shapes, strides and dtypes of the results.
// Tensors that are written, mostly outputs, take memory during the call; inputs
// do not. Random numbers are drawn from a separate generator.
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
    if (!is_written(schema.returns()[k])) {
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

// A kernel for operators that return values, or results whose shape depends on
// values. Throws c10::NotImplementedError.
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

// ---- Convolutions on the meta device.

// The geometry of a convolution.
struct Window {
  at::IntArrayRef stride, padding, dilation;
  bool transposed;
  at::IntArrayRef output_padding;
  int64_t groups;
};

// Returns a CPU tensor of the same size and layout, without memory. It is only
// used to ask LibTorch about kernels.
Tensor cpu_like(const Tensor& tensor) {
  return at::from_blob(nullptr, tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.dtype()));
}

// Returns how a CPU computes the convolution.
at::native::ConvBackend backend_of(const Tensor& input, const Tensor& weight,
                                   const Window& window) {
  return at::native::select_conv_backend(
      cpu_like(input), cpu_like(weight), std::nullopt,
      c10::fromIntArrayRefSlow(window.stride),
      c10::fromIntArrayRefSlow(window.padding),
      c10::fromIntArrayRefSlow(window.dilation), window.transposed,
      c10::fromIntArrayRefSlow(window.output_padding), window.groups,
      std::nullopt);
}

// Returns whether oneDNN computes it in oneDNN's own layout. Plain matrix
// products are computed without copies.
bool has_own_layout(at::native::ConvBackend backend, const Tensor& weight,
                    const Window& window) {
  const auto is_one = [](int64_t each) { return each == 1; };
  const auto size = weight.sizes().slice(2);
  if (std::all_of(size.begin(), size.end(), is_one) &&
      std::all_of(window.stride.begin(), window.stride.end(), is_one)) {
    return false;
  }
  return backend == at::native::ConvBackend::Mkldnn ||
         backend == at::native::ConvBackend::MkldnnTranspose;
}

// Returns an uninitialised tensor in the layout of the convolution's results:
// channels-last if the input or the weight is.
Tensor image_of(at::IntArrayRef sizes, const Tensor& input,
                const Tensor& weight, at::native::ConvBackend backend) {
  const auto format = at::native::_determine_backend_memory_format(
      cpu_like(input), cpu_like(weight), backend);
  return at::empty(sizes, input.options(), format);
}

// oneDNN stores channels in blocks: of 16 with AVX-512, with exceptions for few
// channels. The rules below were found by counting the allocations of LibTorch
// 2.11 on such a machine.
constexpr int64_t kBlock = 16, kSmallBlock = 8;
constexpr int64_t kColours = 3;  // inputs with at most so many are not copied

// Returns `channels`, rounded up to whole blocks.
int64_t in_blocks(int64_t channels) {
  return (channels + kBlock - 1) / kBlock * kBlock;
}

// Returns the channels of the input's copy in a forward; 0 for no copy.
int64_t read_by_forward(int64_t channels) {
  if (channels <= kColours) return 0;
  return channels < kBlock ? channels : in_blocks(channels);
}

// Returns the channels of the copies of the input and of the output's gradient,
// in a computation of the weight's gradient. 0 means no copy.
std::pair<int64_t, int64_t> read_for_weights(int64_t input, int64_t gradient) {
  if (input <= kColours) return {0, in_blocks(gradient)};
  if (input > kSmallBlock) return {in_blocks(input), in_blocks(gradient)};
  return {kSmallBlock,
          gradient <= kSmallBlock ? kSmallBlock : in_blocks(gradient)};
}

// Returns the bytes of images of `sizes`, but with `channels` channels.
// `element`: bytes per element.
std::size_t image_bytes(at::IntArrayRef sizes, std::size_t element,
                        int64_t channels) {
  return static_cast<std::size_t>(c10::multiply_integers(sizes) / sizes[1] *
                                  channels) *
         element;
}

// Returns the bytes of the weight in oneDNN's layout.
std::size_t weight_bytes(const Tensor& weight) {
  const int64_t pairs = weight.size(0) * weight.size(1);
  return static_cast<std::size_t>(weight.numel() / pairs *
                                  in_blocks(weight.size(0)) *
                                  in_blocks(weight.size(1))) *
         weight.element_size();
}

// Returns a tensor that is counted as workspace.
Tensor workspace(std::size_t bytes) {
  const MemoryKindScope kind(MemoryKind::kWorkspace);
  return at::empty({static_cast<int64_t>(bytes)},
                   at::TensorOptions().dtype(at::kByte).device(at::kMeta));
}

// Counts the operands and the result in oneDNN's layout, in bytes. Returns the
// result, which the caller holds until it has been copied to the final tensor.
Tensor compute(std::size_t operands, std::size_t result) {
  workspace(operands + result);
  return workspace(result);
}

// Kernel of aten::convolution_overrideable, which LibTorch calls for the
// convolutions of an unknown device. As on a CPU, where oneDNN computes them, a
// convolution takes memory while it runs: copies of the operands and of the
// result in oneDNN's own layout. It is counted as MemoryKind::kWorkspace.
Tensor meta_convolution(const Tensor& input, const Tensor& weight,
                        const optional<Tensor>&, at::IntArrayRef stride,
                        at::IntArrayRef padding, at::IntArrayRef dilation,
                        bool transposed, at::IntArrayRef output_padding,
                        int64_t groups) {
  std::vector<int64_t> sizes = {
      input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (int64_t d = 2; d < input.dim(); ++d) {
    const int64_t k = d - 2;
    const int64_t reach = dilation[k] * (weight.size(d) - 1);
    sizes.push_back(
        transposed
            ? (input.size(d) - 1) * stride[k] - 2 * padding[k] + reach +
                  output_padding[k] + 1
            : (input.size(d) + 2 * padding[k] - reach - 1) / stride[k] + 1);
  }
  const Window window{stride,     padding,        dilation,
                      transposed, output_padding, groups};
  const auto backend = backend_of(input, weight, window);
  Tensor own;
  if (has_own_layout(backend, weight, window)) {
    const std::size_t element = input.element_size();
    own = compute(
        image_bytes(input.sizes(), element, read_by_forward(input.size(1))) +
            weight_bytes(weight),
        image_bytes(sizes, element, in_blocks(sizes[1])));
  }
  return image_of(sizes, input, weight, backend);
}

// Kernel of aten::convolution_backward_overrideable. Returns the gradients of
// input, weight and bias; those that are not `wanted` are undefined. Counts
// workspace like meta_convolution().
Three meta_convolution_backward(const Tensor& gradient, const Tensor& input,
                                const Tensor& weight, at::IntArrayRef stride,
                                at::IntArrayRef padding,
                                at::IntArrayRef dilation, bool transposed,
                                at::IntArrayRef output_padding, int64_t groups,
                                std::array<bool, 3> wanted) {
  const Window window{stride,     padding,        dilation,
                      transposed, output_padding, groups};
  const auto backend = backend_of(input, weight, window);
  const bool own_layout = has_own_layout(backend, weight, window);
  const auto bytes = [](const Tensor& image, int64_t channels) {
    return image_bytes(image.sizes(), image.element_size(), channels);
  };
  Tensor of_input, of_weight, of_bias;
  if (wanted[0]) {
    Tensor own;
    if (own_layout) {
      own = compute(
          bytes(gradient, in_blocks(gradient.size(1))) + weight_bytes(weight),
          bytes(input, in_blocks(input.size(1))));
    }
    of_input = image_of(input.sizes(), input, weight, backend);
  }
  if (wanted[1]) {
    Tensor own;
    if (own_layout) {
      const auto [of_image, of_gradient] =
          read_for_weights(input.size(1), gradient.size(1));
      own = compute(bytes(input, of_image) + bytes(gradient, of_gradient),
                    weight_bytes(weight));
    }
    of_weight = at::empty_like(weight);
  }
  if (wanted[2]) of_bias = at::empty({gradient.size(1)}, gradient.options());
  return {of_input, of_weight, of_bias};
}

// ---- Operators that are frequent or large: their kernels never take memory.

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
  return {at::empty_like(input, input.suggest_memory_format()),
          at::empty({channels}, statistics_of(input)),
          at::empty({channels}, statistics_of(input))};
}

Three batch_norm_backward(const Tensor&, const Tensor& input,
                          const optional<Tensor>& weight,
                          const optional<Tensor>&, const optional<Tensor>&,
                          const optional<Tensor>&, const optional<Tensor>&,
                          bool, double, std::array<bool, 3> wanted) {
  const auto options =
      weight && weight->defined() ? weight->options() : input.options();
  return {wanted[0] ? at::empty_like(input, input.suggest_memory_format())
                    : Tensor(),
          wanted[1] ? at::empty({input.size(1)}, options) : Tensor(),
          wanted[2] ? at::empty({input.size(1)}, options) : Tensor()};
}

Tensor relu(const Tensor& input) { return at::empty_like(input); }

// Returns a tensor of the meta device for a scalar of the CPU, which may meet
// tensors of any device.
Tensor as_meta(const Tensor& each) {
  return each.dim() == 0 && each.is_cpu() ? each.to(at::kMeta) : each;
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  TORCH_CHECK(condition.dtype() == at::kBool || condition.dtype() == at::kByte,
              "where: the condition is ", condition.dtype(),
              "; a boolean tensor is needed");
  const auto dtype = at::result_type(a, b);
  return at::TensorIteratorConfig()
      .check_all_same_dtype(false)
      .declare_static_dtype_and_device(dtype, at::kMeta)
      .add_owned_output(at::Tensor())
      .add_owned_const_input(as_meta(condition))
      .add_owned_const_input(as_meta(a))
      .add_owned_const_input(as_meta(b))
      .build()
      .output();
}

Tensor index_select(const Tensor& input, int64_t dim, const Tensor& index) {
  TORCH_CHECK_INDEX(index.dim() <= 1 && (index.dtype() == at::kLong ||
                                         index.dtype() == at::kInt),
                    "index_select: the index is ", index.dtype(), " ",
                    index.sizes(), "; an integer vector is needed");
  std::vector<int64_t> sizes = input.sizes().vec();
  if (!sizes.empty())
    sizes[at::maybe_wrap_dim(dim, input.dim())] = index.numel();
  return at::empty(sizes, input.options());
}

// For an unknown device LibTorch would compute these two norms step by step,
// with a tensor as large as the input for each step.
Three layer_norm(const Tensor& input, at::SymIntArrayRef normalized,
                 const optional<Tensor>& weight, const optional<Tensor>& bias,
                 double) {
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(normalized);
  at::native::_check_layer_norm_inputs(input, sizes, weight.value_or(Tensor()),
                                       bias.value_or(Tensor()));
  std::vector<int64_t> rows = input.sizes().vec();
  std::fill(rows.end() - static_cast<std::ptrdiff_t>(sizes.size()), rows.end(),
            1);
  return {at::empty(input.sizes(), input.options()),
          at::empty(rows, statistics_of(input)),
          at::empty(rows, statistics_of(input))};
}

Three group_norm(const Tensor& input, const optional<Tensor>&,
                 const optional<Tensor>&, c10::SymInt batch, c10::SymInt,
                 c10::SymInt, int64_t groups, double) {
  const std::vector<int64_t> rows = {batch.expect_int(), groups};
  return {at::empty_like(input, input.suggest_memory_format()),
          at::empty(rows, statistics_of(input)),
          at::empty(rows, statistics_of(input))};
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
  return {wanted[0] ? at::empty(input.sizes(), input.options()) : Tensor(),
          like(wanted[1], weight), like(wanted[2], bias)};
}

Tensor embedding_backward(const Tensor& gradient, const Tensor&,
                          c10::SymInt rows, c10::SymInt, bool) {
  return at::empty({rows.expect_int(), gradient.size(-1)}, gradient.options());
}

Tensor adaptive_pool(const Tensor& input, at::SymIntArrayRef sizes) {
  TORCH_CHECK(input.dim() == 3 || input.dim() == 4,
              "adaptive_avg_pool2d: the input has sizes ", input.sizes(),
              "; 3 or 4 dimensions are needed");
  std::vector<int64_t> output = input.sizes().vec();
  output[output.size() - 2] = sizes[0].expect_int();
  output[output.size() - 1] = sizes[1].expect_int();
  return at::empty(output, input.options(), input.suggest_memory_format());
}

Tensor adaptive_pool_backward(const Tensor&, const Tensor& input) {
  return at::empty_like(input, input.suggest_memory_format());
}

Tensor mish_backward(const Tensor&, const Tensor& input) {
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

// Assertions about values hold.
void assert_nothing(const Tensor& /*condition*/) {}
void assert_nothing_with_text(const Tensor& /*condition*/,
                              c10::string_view /*text*/) {}

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

// Returns whether a CPU would use the fused kernel. The condition differs
// between LibTorch versions, so LibTorch decides. Its check of grouped heads
// divides by their number, which must not be 0.
bool is_fused(const Tensor& query, const Tensor& key, const Tensor& value,
              const optional<Tensor>& mask, double dropout, bool causal,
              bool grouped) {
  if (query.numel() == 0 || key.numel() == 0) return false;
  optional<Tensor> cpu_mask;
  if (mask) cpu_mask = cpu_like(*mask).set_requires_grad(mask->requires_grad());
  return at::_fused_sdp_choice(cpu_like(query), cpu_like(key), cpu_like(value),
                               cpu_mask, dropout, causal, std::nullopt,
                               grouped) ==
         static_cast<int64_t>(at::SDPBackend::flash_attention);
}

// Returns the mask that is added to the scores, as LibTorch makes it: a boolean
// one becomes 0 and -inf in the dtype of the query.
optional<Tensor> additive(const optional<Tensor>& mask, const Tensor& query) {
  if (!mask || !mask->defined()) return std::nullopt;
  if (mask->dtype() == at::kBool) {
    return at::where(mask->logical_not(),
                     -std::numeric_limits<double>::infinity(),
                     at::scalar_tensor(0.0, query.options()));
  }
  TORCH_CHECK(mask->dtype() == at::kFloat || mask->dtype() == query.dtype(),
              "scaled_dot_product_attention: attn_mask is ", mask->dtype(),
              ", query is ", query.dtype(),
              "; pass a mask of bool, float or the dtype of query");
  return mask;
}

// Throws c10::Error if the scores (the products of query and key) would have to
// be broadcast to the mask. LibTorch refuses it on a CPU, where it adds the
// mask in place, but not on the meta device.
void check_mask(const Tensor& mask, const Tensor& query, const Tensor& key,
                bool grouped) {
  std::vector<int64_t> rows = query.sizes().vec(), columns = key.sizes().vec();
  const std::size_t least = grouped ? 3 : 2;
  TORCH_CHECK(rows.size() >= least && columns.size() >= least,
              "scaled_dot_product_attention: query of sizes ", rows,
              " and key of sizes ", columns, "; at least ", least,
              " dimensions are needed");
  rows.back() = 1;
  columns.back() = std::exchange(columns.end()[-2], 1);
  if (grouped) columns.end()[-3] = rows.end()[-3];  // the heads are repeated
  const std::vector<int64_t> scores = at::infer_size(rows, columns);
  TORCH_CHECK(at::is_expandable_to(mask.sizes(), scores),
              "scaled_dot_product_attention: attn_mask of sizes ", mask.sizes(),
              " cannot be broadcast to the scores, of sizes ", scores);
}

// Returns a view with a batch and heads, which the fused kernel needs.
Tensor with_batch(Tensor tensor) {
  while (tensor.dim() < 4) tensor = tensor.unsqueeze(0);
  return tensor;
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const optional<Tensor>& mask, double dropout, bool causal,
                 optional<double> scale, bool grouped) {
  TORCH_CHECK(query.dtype() == key.dtype() && query.dtype() == value.dtype(),
              "scaled_dot_product_attention: query is ", query.dtype(),
              ", key ", key.dtype(), " and value ", value.dtype());
  TORCH_CHECK(!causal || !mask || !mask->defined(),
              "scaled_dot_product_attention: is_causal beside attn_mask");
  optional<Tensor> added = additive(mask, query);
  if (!is_fused(query, key, value, added, dropout, causal, grouped)) {
    if (added) check_mask(*added, query, key, grouped);
    return std::get<0>(at::_scaled_dot_product_attention_math(
        query, key, value, added, dropout, causal, /*dropout_mask=*/{}, scale,
        grouped));
  }
  if (added) added = with_batch(*added);
  const Tensor result =
      std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
          with_batch(query), with_batch(key), with_batch(value), dropout,
          causal, added, scale));
  return query.dim() < 4 ? result.squeeze(0) : result;
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

// Registers run_on_zeros() for operators that create a tensor. Their kernels in
// LibTorch know the meta device only without an index, or read values.
void add_factories() {
  const std::set<std::string> names = {
      "arange",          "linspace",        "logspace",    "range",
      "bartlett_window", "blackman_window", "hann_window", "hamming_window",
      "kaiser_window",   "fft_fftfreq",     "fft_rfftfreq"};
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) == 0 &&
        names.contains(name.name.substr(6)) &&
        name.overload_name.find("out") == std::string::npos) {
      add(name, c10::KernelFunction::makeFromBoxedFunction<&run_on_zeros>());
    }
  }
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
  add_exact("aten::native_layer_norm", "", &layer_norm);
  add_exact("aten::native_layer_norm_backward", "", &layer_norm_backward);
  add_exact("aten::native_group_norm", "", &group_norm);
  add_exact("aten::embedding_dense_backward", "", &embedding_backward);
  add_exact("aten::_adaptive_avg_pool2d", "", &adaptive_pool);
  add_exact("aten::_adaptive_avg_pool2d_backward", "", &adaptive_pool_backward);
  add_exact("aten::mish_backward", "", &mish_backward);
  add_exact("aten::_scaled_dot_product_flash_attention_for_cpu", "",
            &fused_attention);
  add_exact("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "",
            &fused_attention_backward);
  add_exact("aten::multinomial", "", &multinomial);
  add_exact("aten::equal", "", &equal);
  for (const char* name :
       {"aten::addr", "aten::pixel_shuffle", "aten::pixel_unshuffle"}) {
    add({name, ""},
        c10::KernelFunction::makeFromBoxedFunction<&run_on_zeros>());
  }
  add_exact("aten::_assert_async", "", &assert_nothing);
  add_exact("aten::_assert_async", "msg", &assert_nothing_with_text);
  add_composite("aten::scaled_dot_product_attention", &attention);
  add_factories();
  add_others();
  return true;
}();

}  // namespace
}  // namespace gpipe::internal

namespace gpipe {
namespace {

thread_local MetaScope* current_scope = nullptr;

void run(const c10::OperatorHandle& op, c10::DispatchKeySet,
         torch::jit::Stack* stack) {
  if (current_scope) current_scope->divert(op, stack);
  internal::run_uncovered(internal::kMetaKey, op, stack);
}

[[maybe_unused]] const bool registered = [] {
  internal::intercept_all(internal::kMetaKey,
                          c10::KernelFunction::makeFromBoxedFunction<&run>(),
                          "gpipe: without memory");
  return true;
}();

}  // namespace

MetaScope::MetaScope(Extent extent)
    : extent_(extent),
      outer_(std::exchange(current_scope, this)),
      intercept_(internal::kMetaKey) {}

MetaScope::~MetaScope() { current_scope = outer_; }

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
  // An operator like item() reads values; others without results write, such as
  // those for lists.
  const bool reads =
      !internal::returns_tensors(op.schema()) && !op.schema().is_mutable();
  if (any && (!all || (!any_on_meta && reads))) return;
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
