#include "trainer/clip.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>

namespace gpipe::trainer {

double clip_gradients(const std::vector<at::Tensor>& parameters,
                      double max_norm) {
  const c10::AutoGradMode no_graph(false);
  // One transfer per device.
  std::map<std::string, std::vector<at::Tensor>> norms;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor grad = parameter.grad();
    if (!grad.defined()) continue;
    norms[grad.device().str()].push_back(grad.norm(2).to(at::kFloat));
  }
  if (norms.empty()) return 0;
  std::vector<at::Tensor> all;
  for (const auto& device : norms) {
    all.push_back(at::stack(device.second).cpu());
  }
  const at::Tensor total = at::cat(all).norm(2);
  if (!std::isinf(max_norm)) {
    const auto factor =
        at::clamp(max_norm / (total + 1e-6), std::nullopt, 1.0).item<double>();
    for (const at::Tensor& parameter : parameters) {
      if (parameter.grad().defined()) parameter.grad().mul_(factor);
    }
  }
  return total.item<double>();
}

}  // namespace gpipe::trainer
