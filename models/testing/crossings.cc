#include "models/testing/crossings.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/any_value.h>

#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

#include "gpipe/skip.h"

namespace gpipe::models::testing {
namespace {

using torch::Tensor;
using torch::nn::AnyValue;
using Tensors = std::tuple<Tensor, Tensor>;

int64_t bytes_of(AnyValue& value) {
  if (auto* tensor = value.try_get<Tensor>()) return tensor->nbytes();
  const auto& [first, second] = value.get<Tensors>();
  return first.nbytes() + second.nbytes();
}

}  // namespace

Crossings crossings_of(torch::nn::Sequential model,
                       const std::vector<int64_t>& balance,
                       const Tensor& input) {
  torch::NoGradGuard no_grad;
  Crossings crossings;
  struct Skip {
    std::size_t partition;
    int64_t bytes;
  };
  std::map<SkipKey, Skip> skips;
  auto layer = model->begin();
  AnyValue value{Tensor(input)};
  for (std::size_t j = 0; j < balance.size(); ++j) {
    if (j > 0) crossings.boundary += bytes_of(value);
    for (int64_t k = 0; k < balance[j]; ++k, ++layer) {
      value = layer->any_forward(std::move(value));
      const auto* skippable = dynamic_cast<Skippable*>(layer->ptr().get());
      if (!skippable) continue;
      for (const SkipKey& key : skippable->stashable()) {
        skips.insert({key, {j, bytes_of(value)}});
      }
      for (const SkipKey& key : skippable->poppable()) {
        const Skip& skip = skips.at(key);
        if (skip.partition != j) crossings.skips += skip.bytes;
      }
    }
  }
  EXPECT_TRUE(layer == model->end());
  return crossings;
}

}  // namespace gpipe::models::testing
