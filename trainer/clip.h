// Clipping by the norm of all gradients, on whichever devices they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpipe::trainer {

// As torch::nn::utils::clip_grad_norm_(), which wants them on one device.
// Returns the norm that they had; 0 if there are none. Infinity as `max_norm`
// changes nothing. Threads: one at a time.
double clip_gradients(const std::vector<at::Tensor>& parameters,
                      double max_norm);

}  // namespace gpipe::trainer
