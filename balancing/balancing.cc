#include "balancing/balancing.h"

#include <c10/util/Exception.h>

#include <cmath>

#include "balancing/partition.h"
#include "gpipe/base/devices.h"

namespace gpipe::balancing::detail {

void check_cut(int64_t partitions, int64_t layers) {
  with_value_error([&] { check_partitions(partitions, layers); });
}

std::vector<int64_t> balance_by_size(int64_t partitions,
                                     const torch::nn::Sequential& module,
                                     const internal::Value& input,
                                     const SizeOptions& options) {
  check_cut(partitions, static_cast<int64_t>(module->size()));
  TORCH_CHECK_VALUE(options.chunks() >= 1,
                    "chunks must be at least 1, but it is ", options.chunks());
  TORCH_CHECK_VALUE(
      std::isfinite(options.param_scale()) && options.param_scale() >= 0,
      "param_scale must be a number >= 0, but it is ", options.param_scale());
  check_gradients(*module);
  std::vector<double> costs;
  const auto profile = profile_memory(
      module, first_microbatch(input, options.chunks(), options.unsplit()));
  for (const LayerMemory& layer : profile.layers) {
    costs.push_back(
        static_cast<double>(layer.kept_bytes + layer.fixed_bytes()) +
        options.param_scale() * static_cast<double>(layer.trained_bytes));
  }
  return balance_cost(costs, partitions);
}

}  // namespace gpipe::balancing::detail
