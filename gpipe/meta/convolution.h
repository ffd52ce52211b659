// Convolutions without memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

namespace gpipe {

// aten::convolution_overrideable, which is where LibTorch looks for those of a
// device that it does not know. As on a CPU, where they are left to oneDNN,
// they take memory while they run: for their operands in a layout of its own,
// and for the result in it.
at::Tensor meta_convolution(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            at::IntArrayRef stride, at::IntArrayRef padding,
                            at::IntArrayRef dilation, bool transposed,
                            at::IntArrayRef output_padding, int64_t groups);

// aten::convolution_backward_overrideable: the gradients of input, weight and
// bias, as far as they are wanted.
std::tuple<at::Tensor, at::Tensor, at::Tensor> meta_convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input,
    const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> wanted);

}  // namespace gpipe
