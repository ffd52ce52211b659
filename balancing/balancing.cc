#include "balancing/balancing.h"

#include <c10/util/Exception.h>

namespace gpipe::balancing::detail {

void check_partitions(int64_t partitions, const torch::nn::Sequential& module) {
  const auto layers = static_cast<int64_t>(module->size());
  TORCH_CHECK_VALUE(partitions >= 1, "cannot cut ", layers, " layers into ",
                    partitions, " partitions: there must be at least 1");
  TORCH_CHECK_VALUE(layers >= partitions, "cannot cut ", layers,
                    " layers into ", partitions,
                    " partitions: each needs a layer of its own");
}

}  // namespace gpipe::balancing::detail
