#include "models/exported/adapter.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/op_registration.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/nn/init.h>

#include <cmath>
#include <ostream>
#include <utility>

#include "gpipe/libtorch/dispatcher.h"
#include "gpipe/libtorch/tensor_tag.h"

namespace gpipe::adapters {

namespace {

bool has_16_bits(c10::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

at::Tensor weight_of_linear(int64_t inputs, int64_t outputs) {
  return torch::nn::Linear(
             torch::nn::LinearOptions(inputs, outputs).bias(false))
      ->weight.detach();
}

}  // namespace

double scale_of(int64_t rank, double alpha, bool rank_stabilized) {
  const auto r = static_cast<double>(rank);
  return alpha / (rank_stabilized ? std::sqrt(r) : r);
}

at::Tensor delta_of(at::Tensor a, at::Tensor b, double scale, bool transposed) {
  const c10::ScalarType dtype = b.scalar_type();
  // Products of 16 bits are slow on some CPUs, so PEFT uses float32 there.
  const bool wide = b.is_cpu() && has_16_bits(dtype);
  if (wide) {
    a = a.to(at::kFloat);
    b = b.to(at::kFloat);
  }
  at::Tensor delta = at::matmul(b, a);
  if (transposed) delta = delta.t();
  delta = delta * scale;
  return wide ? delta.to(dtype) : delta;
}

at::Tensor add_adapter(const AdapterSettings& settings, const at::Tensor& a,
                       const at::Tensor& b, bool training,
                       const at::Tensor& result, at::Tensor input) {
  input = input.to(a.scalar_type());
  if (settings.dropout > 0) {
    input = at::dropout(input, settings.dropout, training);
  }
  // at::linear() is Python's torch.nn.functional.linear(). The function of the
  // C++ frontend uses other operators.
  const at::Tensor own = at::linear(at::linear(input, a), b) * settings.scale;
  return (result + own).to(result.scalar_type());
}

Adapter::Adapter(AdapterSettings settings, at::Tensor weight)
    : Module("Adapter"),
      settings_(std::move(settings)),
      weight_(std::move(weight)) {
  const at::Tensor a = weight_of_linear(settings_.inputs, settings_.rank);
  const at::Tensor b = weight_of_linear(settings_.rank, settings_.outputs);
  // PEFT draws A a second time.
  torch::nn::init::kaiming_uniform_(a, std::sqrt(5));
  torch::nn::init::zeros_(b);
  const c10::ScalarType dtype = weight_.scalar_type();
  const auto options =
      weight_.options().dtype(has_16_bits(dtype) ? at::kFloat : dtype);
  const auto add = [&](const char* name, const at::Tensor& tensor) {
    return register_module(name, std::make_shared<torch::nn::Module>(name))
        ->register_parameter("weight", tensor.to(dtype).to(options));
  };
  a_ = add("A", a);
  b_ = add("B", b);
}

void Adapter::merge() {
  const c10::NoGradGuard no_grad;
  weight_.add_(delta_of(a_, b_, settings_.scale, settings_.transposed));
}

void Adapter::pretty_print(std::ostream& stream) const {
  stream << "Adapter(rank=" << settings_.rank << ", scale=" << settings_.scale
         << ", dropout=" << settings_.dropout << ")";
}

// ---- The hook of torch::nn::Linear

namespace {

// The dispatch key in the key set of a tagged weight. LibTorch reserves it for
// Python's tracing before autograd, and passes over it here. It comes before
// autograd, autocast and gpipe's interceptors.
constexpr c10::DispatchKey kKey = c10::DispatchKey::PreDispatch;

constexpr char kModule[] = "lora";

// The content of a tag.
struct WeightTag : internal::TensorTag<WeightTag, kKey> {
  WeightTag(std::weak_ptr<Adapter> adapter, bool transposed)
      : adapter(std::move(adapter)), transposed(transposed) {}

  const std::weak_ptr<Adapter> adapter;
  const bool transposed;  // the tensor is the weight's t()
};

void set_tag(const at::Tensor& tensor, c10::intrusive_ptr<WeightTag> tag) {
  TORCH_CHECK(WeightTag::set(tensor, std::move(tag)),
              "the weight belongs to a placed module or to a backend with data "
              "of its own, and cannot have an adapter");
}

// Runs an operator on a weight without an adapter.
void pass(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
          torch::jit::Stack* stack) {
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

// Runs the operator without tags.
void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard untagged(kKey);
  op.callBoxed(stack);
}

at::Tensor argument(const c10::OperatorHandle& op,
                    const torch::jit::Stack& stack, std::size_t place) {
  const std::size_t count = op.schema().arguments().size();
  const c10::IValue& value = stack[stack.size() - count + place];
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

// Returns the number by which addmm() multiplies its product; 1 for others.
double factor_of(const c10::OperatorHandle& op,
                 const torch::jit::Stack& stack) {
  const auto place = op.schema().argumentIndexWithName("alpha");
  if (!place) return 1;
  return stack[stack.size() - op.schema().arguments().size() + *place]
      .toScalar()
      .toDouble();
}

// Adds the adapter of the weight at place `Weight` to the operator's result.
template <std::size_t Input, std::size_t Weight, bool Transposed>
void multiply(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
              torch::jit::Stack* stack) {
  const at::Tensor input = argument(op, *stack, Input);
  const at::Tensor weight = argument(op, *stack, Weight);
  const WeightTag* const tag = WeightTag::of(weight);
  const auto adapter = tag && tag->transposed == Transposed
                           ? tag->adapter.lock()
                           : std::shared_ptr<Adapter>();
  if (!adapter) {
    pass(op, keys, stack);
    return;
  }
  const double factor = factor_of(op, *stack);
  run(op, stack);
  c10::IValue& result = stack->back();
  AdapterSettings settings = adapter->settings();
  settings.scale *= factor;
  result = add_adapter(settings, adapter->a(), adapter->b(),
                       adapter->is_training(), result.toTensor(), input);
}

// Tags the result, which is the weight in another form.
template <bool Transposes>
void follow(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
            torch::jit::Stack* stack) {
  const at::Tensor weight = argument(op, *stack, 0);
  const WeightTag* const tag = WeightTag::of(weight);
  if (!tag) {
    pass(op, keys, stack);
    return;
  }
  run(op, stack);
  set_tag(stack->back().toTensor(),
          c10::make_intrusive<WeightTag>(tag->adapter,
                                         tag->transposed != Transposes));
}

using Kernel = void (*)(const c10::OperatorHandle&, c10::DispatchKeySet,
                        torch::jit::Stack*);

template <Kernel kernel>
void replace(const char* name, const char* overload = "") {
  internal::keep_registered(c10::Dispatcher::singleton().registerImpl(
      {name, overload}, kKey,
      c10::KernelFunction::makeFromBoxedFunction<kernel>(),
      /*cpp_signature=*/std::nullopt, /*inferred_function_schema=*/nullptr,
      "gpipe: adapters"));
}

[[maybe_unused]] const bool registered = [] {
  if (!internal::claim(kKey, "adapters")) return false;
  replace<&multiply<0, 1, false>>("aten::linear");
  replace<&multiply<0, 1, true>>("aten::matmul");
  replace<&multiply<1, 2, true>>("aten::addmm");
  replace<&follow<true>>("aten::t");
  replace<&follow<false>>("aten::_to_copy");
  return true;
}();

}  // namespace

bool can_attach(const torch::nn::LinearImpl& linear) {
  return WeightTag::can_be_on(linear.weight);
}

void attach(torch::nn::LinearImpl& linear, std::shared_ptr<Adapter> adapter) {
  internal::check_claimed(kKey);
  set_tag(linear.weight, c10::make_intrusive<WeightTag>(adapter, false));
  linear.register_module(kModule, std::move(adapter));
}

void detach(torch::nn::LinearImpl& linear) {
  WeightTag::remove(linear.weight);
  linear.unregister_module(kModule);
}

}  // namespace gpipe::adapters
