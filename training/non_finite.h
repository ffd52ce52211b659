// Public: which tensors hold what is no number any more.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <string>
#include <vector>

namespace gpipe {

// The names of the tensors that hold a NaN or an infinity, in their order.
// Those that are undefined, or of integers, hold none. For parameters:
// non_finite_names(model->named_parameters()); for their gradients see
// non_finite_gradients(). Waits for an accelerator once per device. Threads:
// any.
std::vector<std::string> non_finite_names(
    const torch::OrderedDict<std::string, at::Tensor>& named);

// The same of their `.grad`.
std::vector<std::string> non_finite_gradients(
    const torch::OrderedDict<std::string, at::Tensor>& parameters);

}  // namespace gpipe
