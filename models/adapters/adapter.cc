#include "models/adapters/adapter.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <memory>
#include <ostream>
#include <utility>

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

Adapter::Adapter(AdapterSettings settings, at::Tensor base,
                 const at::Tensor& like)
    : Module("Adapter"),
      settings_(std::move(settings)),
      base_(std::move(base)) {
  const at::Tensor a = weight_of_linear(settings_.inputs, settings_.rank);
  const at::Tensor b = weight_of_linear(settings_.rank, settings_.outputs);
  // PEFT draws A a second time.
  torch::nn::init::kaiming_uniform_(a, std::sqrt(5));
  torch::nn::init::zeros_(b);
  const c10::ScalarType dtype = like.scalar_type();
  const auto options =
      like.options().dtype(has_16_bits(dtype) ? at::kFloat : dtype);
  const auto add = [&](const char* name, const at::Tensor& tensor) {
    return register_module(name, std::make_shared<torch::nn::Module>(name))
        ->register_parameter("weight", tensor.to(options));
  };
  a_ = add("A", a);
  b_ = add("B", b);
}

at::Tensor Adapter::forward(const at::Tensor& result, at::Tensor input) {
  input = input.to(a_.scalar_type());
  if (settings_.dropout > 0) {
    input = at::dropout(input, settings_.dropout, is_training());
  }
  // at::linear() is Python's torch.nn.functional.linear(). The function of the
  // C++ frontend uses other operators.
  const at::Tensor own =
      at::linear(at::linear(input, a_), b_) * settings_.scale;
  return (result + own).to(result.scalar_type());
}

void Adapter::merge() {
  TORCH_CHECK_VALUE(has_base(), "the adapter of '", settings_.name,
                    "' cannot be merged, because other modules use the same "
                    "weight; keep the adapter beside the model");
  const c10::NoGradGuard no_grad;
  base_.add_(delta_of(a_, b_, settings_.scale, settings_.transposed));
}

void Adapter::pretty_print(std::ostream& stream) const {
  stream << "Adapter(rank=" << settings_.rank << ", scale=" << settings_.scale
         << ", dropout=" << settings_.dropout << ")";
}

}  // namespace gpipe::adapters
