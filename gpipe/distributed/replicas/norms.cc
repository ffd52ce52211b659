#include "gpipe/distributed/replicas/norms.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/gather.h"
#include "gpipe/runtime/cell/grad_norm.h"

namespace gpipe::internal {
namespace {

struct Norm {
  int64_t layer;
  at::Tensor value;
};

}  // namespace

double clip_grad_norm(World& world, const std::vector<int>& members, int tag,
                      const std::vector<std::pair<int64_t, at::Tensor>>& own,
                      double max_norm, double norm_type) {
  const c10::AutoGradMode no_graph(false);
  std::string mine;
  std::vector<at::Tensor> grads;
  for (const auto& [layer, parameter] : own) {
    if (!parameter.grad().defined()) continue;
    grads.push_back(parameter.grad().detach());
    const at::Tensor norm =
        norm_type == 0 ? at::zeros({}) : norm_of(grads.back(), norm_type);
    put(mine, layer);
    put(mine, norm.item<double>());
    put(mine, static_cast<int8_t>(norm.scalar_type()));
  }
  std::vector<Norm> all;
  for (const std::string& bytes :
       all_gather(world, members, tag, mine, "the norm of the gradients")) {
    for (std::size_t at = 0; at < bytes.size();) {
      Norm norm;
      norm.layer = take<int64_t>(bytes, at);
      const auto value = take<double>(bytes, at);
      norm.value = at::scalar_tensor(
          value, static_cast<at::ScalarType>(take<int8_t>(bytes, at)));
      all.push_back(std::move(norm));
    }
  }
  if (all.empty()) return 0;
  std::stable_sort(all.begin(), all.end(), [](const Norm& a, const Norm& b) {
    return a.layer < b.layer;
  });
  std::vector<at::Tensor> norms;
  for (Norm& each : all) norms.push_back(std::move(each.value));
  const at::Tensor total = total_norm(std::move(norms), norm_type);
  scale_grads(grads, total, max_norm);
  return total.item<double>();
}

}  // namespace gpipe::internal
