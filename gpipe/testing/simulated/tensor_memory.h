// The memory behind a tensor of a simulated accelerator.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include "gpipe/testing/simulated/happens_before.h"

namespace gpipe::simulated {

bool is_simulated(const at::Tensor& tensor);

// A CPU tensor of the same memory, which it does not keep alive.
at::Tensor host_alias(const at::Tensor& tensor);

// `copy`, counting as a number without a type of its own if `tensor` does: the
// 2.5 of `x * 2.5` does not make a double of x.
at::Tensor wrapped_as(const at::Tensor& tensor, at::Tensor copy);

// The bytes that a use of `tensor` touches.
Access access(const at::Tensor& tensor, bool write);

// The stream that this thread's operators on `tensor` go to.
c10::Stream stream_of(const at::Tensor& tensor);

}  // namespace gpipe::simulated
