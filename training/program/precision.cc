#include "training/program/precision.h"

#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <utility>
#include <vector>

namespace gpipe::train_program {

void Precision::convert(torch::nn::Sequential& model) const {
  if (parameters == at::kFloat) return;
  // Module::to(dtype) would convert the counters of BatchNorm, too.
  const auto convert_all = [this](const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.is_floating_point()) tensor.set_data(tensor.to(parameters));
    }
  };
  const torch::NoGradGuard no_grad;
  convert_all(model->parameters());
  convert_all(model->buffers());
}

Sample Precision::prepare(Sample sample) const {
  // Without a conversion, a model from a file may take another dtype.
  if (parameters == at::kFloat) return sample;
  return with_inputs_changed(std::move(sample), [this](const at::Tensor& each) {
    return each.is_floating_point() ? each.to(parameters) : each;
  });
}

std::unique_ptr<AutocastScope> Precision::scope(c10::DeviceType device) const {
  if (!autocast) return nullptr;
  return std::make_unique<AutocastScope>(device, *autocast);
}

Precision precision_of(const std::string& name) {
  Precision precision;
  if (name == "amp-float16") {
    precision.autocast = at::kHalf;
  } else if (name == "amp-bfloat16") {
    precision.autocast = at::kBFloat16;
  } else if (name == "bfloat16") {
    precision.parameters = at::kBFloat16;
  } else {
    TORCH_CHECK_VALUE(name == "float32", "--precision=", name,
                      ": must be float32, amp-float16, amp-bfloat16 or "
                      "bfloat16");
  }
  return precision;
}

}  // namespace gpipe::train_program
