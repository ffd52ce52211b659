// A search for tensors that contain NaN or infinity.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <string>
#include <vector>

namespace gpipe {

// Returns the names of the tensors that contain a NaN or an infinity, in the
// order of `named`. Undefined tensors and integer tensors contain neither.
// Waits once for each device of the tensors. Thread-safe.
//
//   gpipe::non_finite_names(model->named_parameters());
std::vector<std::string> non_finite_names(
    const torch::OrderedDict<std::string, at::Tensor>& named);

// Does the same for the gradients (`.grad`) of `parameters`.
std::vector<std::string> non_finite_gradients(
    const torch::OrderedDict<std::string, at::Tensor>& parameters);

}  // namespace gpipe
