// Convolutions on the meta device.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

namespace gpipe::internal {

// Kernel of aten::convolution_overrideable, which LibTorch calls for the
// convolutions of an unknown device. As on a CPU, where oneDNN computes them, a
// convolution takes memory while it runs: copies of the operands and of the
// result in oneDNN's own layout. It is counted as MemoryKind::kWorkspace.
at::Tensor meta_convolution(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            at::IntArrayRef stride, at::IntArrayRef padding,
                            at::IntArrayRef dilation, bool transposed,
                            at::IntArrayRef output_padding, int64_t groups);

// Kernel of aten::convolution_backward_overrideable. Returns the gradients of
// input, weight and bias; those that are not `wanted` are undefined. Counts
// workspace like meta_convolution().
std::tuple<at::Tensor, at::Tensor, at::Tensor> meta_convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input,
    const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> wanted);

}  // namespace gpipe::internal
