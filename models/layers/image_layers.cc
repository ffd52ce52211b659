#include "models/layers/image_layers.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <c10/util/Exception.h>

namespace gpipe::models {

void check_images(const char* model, const at::Tensor& input,
                  int64_t channels) {
  TORCH_CHECK_VALUE(input.dim() == 4 && input.size(1) == channels, model,
                    ": the input must have 4 dimensions and ", channels,
                    " channels, that is [batch, ", channels,
                    ", height, width], but its shape is ", input.sizes());
}

namespace {

constexpr char kSkip[] = "skip";

}  // namespace

UNetStashImpl::UNetStashImpl(const Namespace& ns) : Skippable({{kSkip}, {}}) {
  isolate(ns);
}

torch::Tensor UNetStashImpl::forward(torch::Tensor x) {
  stash(kSkip, x);
  return x;
}

void UNetStashImpl::pretty_print(std::ostream& stream) const {
  stream << "gpipe::models::UNetStash()";
}

UNetPopCatImpl::UNetPopCatImpl(const Namespace& ns) : Skippable({{}, {kSkip}}) {
  isolate(ns);
}

torch::Tensor UNetPopCatImpl::forward(torch::Tensor x) {
  const torch::Tensor skip = *pop(kSkip);
  const int64_t bottom = skip.size(2) - x.size(2);
  const int64_t right = skip.size(3) - x.size(3);
  if (bottom != 0 || right != 0) {
    x = at::constant_pad_nd(x, {0, right, 0, bottom});
  }
  return at::cat({x, skip}, /*dim=*/1);
}

void UNetPopCatImpl::pretty_print(std::ostream& stream) const {
  stream << "gpipe::models::UNetPopCat()";
}

}  // namespace gpipe::models
