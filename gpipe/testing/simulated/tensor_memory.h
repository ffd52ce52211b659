// Access to the memory of a tensor on a simulated accelerator.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include "gpipe/testing/simulated/happens_before.h"

namespace gpipe::simulated {

bool is_simulated(const at::Tensor& tensor);

// Returns a CPU tensor with the same memory. The memory must outlive it.
at::Tensor host_alias(const at::Tensor& tensor);

// Returns `copy`, marked as a wrapped number if `tensor` is one. A wrapped
// number has no dtype of its own: the 2.5 of `x * 2.5` does not make x a
// double.
at::Tensor wrapped_as(const at::Tensor& tensor, at::Tensor copy);

// Returns the bytes that an operation on `tensor` accesses.
Access access(const at::Tensor& tensor, bool write);

// Returns the stream on which this thread's operators on `tensor` run.
c10::Stream stream_of(const at::Tensor& tensor);

}  // namespace gpipe::simulated
