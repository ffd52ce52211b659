// The norm of gradients, on whichever devices they are, and clipping by it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpipe {

// The parts of torch::nn::utils::clip_grad_norm_(): the same operators on the
// same numbers, and so its bits. It wants all gradients on one device.

// Of one gradient: a number, on its device. Infinity: the largest absolute
// value. (With the norm 0 gradients count, and this is not called.)
at::Tensor norm_of(const at::Tensor& grad, double type);

// Of the vector that is made of all gradients, from the norm of each in their
// order: a number on the first one's device. Of those that follow each other on
// another device one copy is made. `norms`: at least one.
at::Tensor total_norm(std::vector<at::Tensor> norms, double type);

// Multiplies gradients whose norm is `total` so that it is `max_norm` at most;
// with infinity it leaves them alone.
void scale_grads(const std::vector<at::Tensor>& grads, const at::Tensor& total,
                 double max_norm);

// All of it: on the gradients that these parameters have, each once, also where
// a parameter is there several times. Returns the norm that they had; 0 if
// there are none. Waits for the devices. Threads: one at a time.
double clip_grad_norm(const std::vector<at::Tensor>& parameters,
                      double max_norm, double type);

}  // namespace gpipe
