// The norm of gradients that are spread over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "gpipe/distributed/world.h"

namespace gpipe {

// As torch::nn::utils::clip_grad_norm_() on the parameters of all `members`, in
// the order of their layers: the same operators on the same numbers. `own`: the
// layer's index and a parameter of it, those without gradient left out by this
// function. Returns the norm that they had.
double clip_grad_norm(World& world, const std::vector<int>& members, int tag,
                      const std::vector<std::pair<int64_t, at::Tensor>>& own,
                      double max_norm, double norm_type);

}  // namespace gpipe
