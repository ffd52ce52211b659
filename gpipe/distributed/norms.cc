#include "gpipe/distributed/norms.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "gpipe/distributed/bytes.h"
#include "gpipe/distributed/gather.h"

namespace gpipe {
namespace {

struct Norm {
  int64_t layer;
  double value;
  at::ScalarType type;
};

bool is_maximum(double type) {
  return type == std::numeric_limits<double>::infinity();
}

at::Tensor norm_of(const at::Tensor& grad, double type) {
  return is_maximum(type) ? grad.abs().max() : grad.norm(type);
}

at::Tensor total_of(const std::vector<Norm>& norms, double type) {
  if (type == 0) return at::full({}, static_cast<double>(norms.size()));
  std::vector<at::Tensor> values;
  for (const Norm& each : norms) {
    values.push_back(at::scalar_tensor(each.value, each.type));
  }
  if (values.size() == 1) return values.front();
  const at::Tensor all = at::stack(values);
  return is_maximum(type) ? all.max() : all.norm(type);
}

}  // namespace

double clip_grad_norm(World& world, const std::vector<int>& members, int tag,
                      const std::vector<std::pair<int64_t, at::Tensor>>& own,
                      double max_norm, double norm_type) {
  const c10::AutoGradMode no_graph(false);
  std::string mine;
  for (const auto& [layer, parameter] : own) {
    const at::Tensor grad = parameter.grad();
    if (!grad.defined()) continue;
    const at::Tensor norm =
        norm_type == 0 ? at::zeros({}) : norm_of(grad.detach(), norm_type);
    put(mine, layer);
    put(mine, norm.item<double>());
    put(mine, static_cast<int8_t>(norm.scalar_type()));
  }
  std::vector<Norm> norms;
  for (const std::string& bytes :
       all_gather(world, members, tag, mine, "the norm of the gradients")) {
    for (std::size_t at = 0; at < bytes.size();) {
      Norm norm{};
      norm.layer = take<int64_t>(bytes, at);
      norm.value = take<double>(bytes, at);
      norm.type = static_cast<at::ScalarType>(take<int8_t>(bytes, at));
      norms.push_back(norm);
    }
  }
  if (norms.empty()) return 0;
  std::stable_sort(
      norms.begin(), norms.end(),
      [](const Norm& a, const Norm& b) { return a.layer < b.layer; });
  const at::Tensor total = total_of(norms, norm_type);
  const at::Tensor factor =
      at::clamp(max_norm / (total + 1e-6), std::nullopt, 1.0);
  for (const auto& [layer, parameter] : own) {
    at::Tensor grad = parameter.grad();
    if (grad.defined()) grad.detach().mul_(factor);
  }
  return total.item<double>();
}

}  // namespace gpipe
