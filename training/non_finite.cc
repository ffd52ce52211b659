#include "training/non_finite.h"

#include <ATen/Functions.h>
#include <c10/core/Device.h>
#include <c10/core/GradMode.h>

#include <cstdint>
#include <unordered_map>
#include <utility>

#include "models/weights/state_dict.h"

namespace gpipe {
namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

std::vector<std::string> non_finite(const Named& named) {
  const c10::NoGradGuard no_grad;
  // For each tensor of one device: a tensor that says whether all its values
  // are finite, and its index in `named`.
  struct Asked {
    std::vector<at::Tensor> finite;
    std::vector<std::size_t> places;
  };
  std::unordered_map<c10::Device, Asked> by_device;
  for (std::size_t k = 0; k < named.size(); ++k) {
    if (!named[k].second.defined()) continue;
    const at::Tensor tensor = internal::elements_of(named[k].second);
    if (!tensor.is_floating_point() && !tensor.is_complex()) continue;
    Asked& asked = by_device[tensor.device()];
    asked.finite.push_back(at::isfinite(tensor).all());
    asked.places.push_back(k);
  }
  std::vector<bool> bad(named.size());
  for (const auto& [device, asked] : by_device) {
    const at::Tensor answers = at::stack(asked.finite).cpu();
    for (std::size_t k = 0; k < asked.places.size(); ++k) {
      bad[asked.places[k]] = !answers[static_cast<int64_t>(k)].item<bool>();
    }
  }
  std::vector<std::string> names;
  for (std::size_t k = 0; k < named.size(); ++k) {
    if (bad[k]) names.push_back(named[k].first);
  }
  return names;
}

}  // namespace

std::vector<std::string> non_finite_names(
    const torch::OrderedDict<std::string, at::Tensor>& named) {
  Named list;
  for (const auto& each : named) list.emplace_back(each.key(), each.value());
  return non_finite(list);
}

std::vector<std::string> non_finite_gradients(
    const torch::OrderedDict<std::string, at::Tensor>& parameters) {
  Named list;
  for (const auto& each : parameters) {
    list.emplace_back(each.key(), each.value().defined() ? each.value().grad()
                                                         : at::Tensor());
  }
  return non_finite(list);
}

}  // namespace gpipe
