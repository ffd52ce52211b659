#include "gpipe/runtime/cell/read_scalars.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <cstddef>
#include <map>
#include <unordered_map>

namespace gpipe::internal {
namespace {

// Returns `values` as words of 64 bits that hold them without loss.
at::Tensor words_of(const at::Tensor& values) {
  return values.is_floating_point() ? values.to(at::kDouble).view(at::kLong)
                                    : values.to(at::kLong);
}

}  // namespace

std::vector<at::Tensor> scalars_on_host(
    const std::vector<at::Tensor>& scalars) {
  const c10::AutoGradMode no_graph(false);
  std::vector<at::Tensor> result(scalars.size());
  std::unordered_map<c10::Device,
                     std::map<at::ScalarType, std::vector<std::size_t>>>
      on_device;
  for (std::size_t k = 0; k < scalars.size(); ++k) {
    result[k] = scalars[k].detach().reshape({});
    if (result[k].is_cpu()) continue;
    on_device[result[k].device()][result[k].scalar_type()].push_back(k);
  }
  for (const auto& [device, by_type] : on_device) {
    std::vector<at::Tensor> words;
    for (const auto& [type, places] : by_type) {
      std::vector<at::Tensor> alike;
      for (const std::size_t k : places) alike.push_back(result[k]);
      words.push_back(words_of(at::stack(alike)));
    }
    const at::Tensor here =
        (words.size() == 1 ? words[0] : at::cat(words)).cpu();
    int64_t word = 0;
    for (const auto& [type, places] : by_type) {
      const auto count = static_cast<int64_t>(places.size());
      at::Tensor values = here.narrow(0, word, count);
      if (c10::isFloatingType(type)) values = values.view(at::kDouble);
      values = values.to(type);
      for (int64_t n = 0; n < count; ++n) {
        result[places[static_cast<std::size_t>(n)]] = values[n];
      }
      word += count;
    }
  }
  return result;
}

std::vector<double> read_scalars(const std::vector<at::Tensor>& scalars) {
  std::vector<double> values;
  values.reserve(scalars.size());
  for (const at::Tensor& each : scalars_on_host(scalars)) {
    values.push_back(each.item<double>());
  }
  return values;
}

}  // namespace gpipe::internal
