// The norm of gradients on any devices, and clipping by norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpipe::internal {

// The next three functions are the parts of
// torch::nn::utils::clip_grad_norm_(). They use the same operators on the same
// numbers and give the same bits. LibTorch's function requires all gradients on
// one device, and does not scale sparse gradients, which are scaled here.

// Returns the norm of one gradient: a scalar on its device. `type`: the order
// of the norm; infinity: the largest absolute value. Not called for order 0,
// where the total norm is the number of gradients.
at::Tensor norm_of(const at::Tensor& grad, double type);

// Returns the norm over all gradients from the norm of each: a scalar on the
// device of the first. Consecutive norms on one other device are copied
// together. `norms`: in the order of the gradients; at least one. For order 0
// only their number counts.
at::Tensor total_norm(std::vector<at::Tensor> norms, double type);

// Multiplies `grads`, whose norm is `total`, in place so that the norm is at
// most `max_norm`. If `max_norm` is infinite, changes nothing.
void scale_grads(const std::vector<at::Tensor>& grads, const at::Tensor& total,
                 double max_norm);

// Clips the gradients of `parameters` to `max_norm` and returns the norm before
// clipping; 0 if there are no gradients. A parameter that occurs several times
// counts once. `type`: the order of the norm. Waits for the devices. Not
// thread-safe.
double clip_grad_norm(const std::vector<at::Tensor>& parameters,
                      double max_norm, double type);

}  // namespace gpipe::internal
