#include "gpipe/distributed/runner/norms.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/exchanges.h"
#include "gpipe/runtime/autograd/gradients.h"
#include "gpipe/runtime/device/copier.h"

namespace gpipe::internal {
namespace {

// The bytes of the arguments in front of the norms.
constexpr std::size_t kArguments = 2 * sizeof(double);

struct Norm {
  int64_t layer;
  at::Tensor value;
};

// Throws on all ranks if two of them have other arguments, or if these are
// wrong. `all`: by rank, each beginning with its `max_norm` and `norm_type`.
void check_arguments(Communicator& world, int tag,
                     const std::vector<std::string>& all, double max_norm,
                     double norm_type, bool of_shards, bool& agreed) {
  const auto text = [&](std::size_t rank) {
    std::size_t at = 0;
    double max_norm = 0, norm_type = 0;
    unpack(all[rank], at, max_norm, norm_type);
    return c10::str("max_norm ", max_norm, " and norm_type ", norm_type,
                    " on rank ", rank);
  };
  const auto refuse_together = [&] {
    agreed = true;
    // No rank may end before all know the error.
    meet(world, world.all_ranks(), tag, "the end of a refused clipping");
  };
  for (std::size_t k = 1; k < all.size(); ++k) {
    if (all[k].compare(0, kArguments, all[0], 0, kArguments) == 0) continue;
    refuse_together();
    TORCH_CHECK_VALUE(false, "clip_grad_norm_() has ", text(0), ", but ",
                      text(k), "; call it with the same on all ranks");
  }
  if (max_norm >= 0 && !(of_shards && norm_type == 0)) return;
  refuse_together();
  check_max_norm(max_norm);
  TORCH_CHECK_VALUE(false,
                    "clip_grad_norm_() with norm_type 0 counts the parameters, "
                    "but with shard_optimizer each replica has parts of them; "
                    "give another norm_type");
}

}  // namespace

double clip_grad_norm(Communicator& world, const std::vector<int>& members,
                      int tag,
                      const std::vector<std::pair<int64_t, at::Tensor>>& own,
                      double max_norm, double norm_type, bool of_shards,
                      bool& agreed) {
  const c10::AutoGradMode no_graph(false);
  std::string mine = pack(max_norm, norm_type);
  std::vector<at::Tensor> grads, own_norms;
  std::vector<int64_t> layers;
  for (const auto& [layer, parameter] : own) {
    if (!parameter.grad().defined()) continue;
    grads.push_back(parameter.grad().detach());
    layers.push_back(layer);
    own_norms.push_back(norm_type == 0 ? at::zeros({})
                                       : norm_of(grads.back(), norm_type));
  }
  const std::vector<double> values = read_scalars(own_norms);
  for (std::size_t k = 0; k < values.size(); ++k) {
    mine += pack(layers[k], values[k], own_norms[k].scalar_type());
  }
  // Also with other replicas: clipped to another norm there, equal gradients
  // would differ.
  const auto texts = all_gather(world, tag, mine, "the norm of the gradients");
  check_arguments(world, tag, texts, max_norm, norm_type, of_shards, agreed);
  std::vector<Norm> all;
  for (const int member : members) {
    const std::string& bytes = texts[member];
    for (std::size_t at = kArguments; at < bytes.size();) {
      Norm norm;
      double value = 0;
      at::ScalarType type{};
      unpack(bytes, at, norm.layer, value, type);
      TORCH_CHECK(at <= bytes.size() && c10::isFloatingType(type),
                  "the norms of rank ", member, " are cut off or of type ",
                  static_cast<int>(type),
                  ", which is no floating-point number; run the same gpipe on "
                  "all ranks");
      norm.value = at::scalar_tensor(value, type);
      all.push_back(std::move(norm));
    }
  }
  if (all.empty()) return 0;
  std::ranges::stable_sort(
      all, [](const Norm& a, const Norm& b) { return a.layer < b.layer; });
  std::vector<at::Tensor> norms;
  for (Norm& each : all) norms.push_back(std::move(each.value));
  const at::Tensor total = total_norm(std::move(norms), norm_type);
  scale_grads(grads, total, max_norm);
  return total.item<double>();
}

}  // namespace gpipe::internal
