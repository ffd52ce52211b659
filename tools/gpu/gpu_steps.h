// Single training steps for the checks of gpu_checks.h and gpu_ranks.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"

namespace gpipe::tools {

// Returns the mean of the squared differences: a scalar.
at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target);

// Returns three layers per partition: Linear, Tanh, Linear. Input and output
// have shape [rows, 1], boundaries between partitions [rows, width]. The
// weights depend on the seed of LibTorch's default generator.
torch::nn::Sequential wide_layers(int64_t partitions, int64_t width);

// Runs one step and returns the loss and the gradients of all parameters, as
// copies on the CPU. Seeds LibTorch's default generators with `seed` before the
// step and clears the gradients after it.
std::vector<at::Tensor> results_of_step(GPipe& pipeline,
                                        const at::Tensor& input,
                                        const at::Tensor& target,
                                        const Schedule& schedule,
                                        uint64_t seed);

// Returns the largest absolute difference of two results_of_step(), divided by
// the largest absolute value of each tensor; infinity if a value is not finite
// or a shape differs. 0 means equal.
double largest_difference(const std::vector<at::Tensor>& left,
                          const std::vector<at::Tensor>& right);

}  // namespace gpipe::tools
