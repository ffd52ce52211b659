#include "training/non_finite.h"

#include <ATen/Functions.h>
#include <c10/core/Device.h>
#include <c10/core/GradMode.h>

#include <cstdint>
#include <unordered_map>

#include "models/weights/state_dict.h"

namespace gpipe {

std::vector<std::string> non_finite_names(
    const torch::OrderedDict<std::string, at::Tensor>& named) {
  const c10::NoGradGuard no_grad;
  // For each tensor of one device: a tensor that says whether all its values
  // are finite, and its index in `named`.
  struct Asked {
    std::vector<at::Tensor> finite;
    std::vector<std::size_t> places;
  };
  std::unordered_map<c10::Device, Asked> by_device;
  for (std::size_t k = 0; k < named.size(); ++k) {
    if (!named[k].value().defined()) continue;
    const at::Tensor tensor = internal::elements_of(named[k].value());
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
    if (bad[k]) names.push_back(named[k].key());
  }
  return names;
}

std::vector<std::string> non_finite_gradients(
    const torch::OrderedDict<std::string, at::Tensor>& parameters) {
  torch::OrderedDict<std::string, at::Tensor> gradients;
  for (const auto& each : parameters) {
    gradients.insert(each.key(), each.value().defined() ? each.value().grad()
                                                        : at::Tensor());
  }
  return non_finite_names(gradients);
}

}  // namespace gpipe
