#include "models/zoo/unet_skip.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include <cstdint>

namespace gpipe::models {
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
