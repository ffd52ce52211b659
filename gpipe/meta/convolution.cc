#include "gpipe/meta/convolution.h"

#include <ATen/Functions.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/SymIntArrayRef.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "gpipe/runtime/device/memory_kind.h"

namespace gpipe::internal {
namespace {

using at::Tensor;

// The geometry of a convolution.
struct Window {
  at::IntArrayRef stride, padding, dilation;
  bool transposed;
  at::IntArrayRef output_padding;
  int64_t groups;
};

// Returns a CPU tensor of the same size and layout, without memory. It is only
// used to ask LibTorch about kernels.
Tensor cpu_like(const Tensor& tensor) {
  return at::from_blob(nullptr, tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.dtype()));
}

// Returns whether a CPU computes the convolution by oneDNN in oneDNN's own
// layout. Plain matrix products are computed without copies.
bool has_own_layout(const Tensor& input, const Tensor& weight,
                    const Window& window) {
  const auto is_one = [](int64_t each) { return each == 1; };
  const auto size = weight.sizes().slice(2);
  if (std::all_of(size.begin(), size.end(), is_one) &&
      std::all_of(window.stride.begin(), window.stride.end(), is_one)) {
    return false;
  }
  const auto backend = at::native::select_conv_backend(
      cpu_like(input), cpu_like(weight), std::nullopt,
      c10::fromIntArrayRefSlow(window.stride),
      c10::fromIntArrayRefSlow(window.padding),
      c10::fromIntArrayRefSlow(window.dilation), window.transposed,
      c10::fromIntArrayRefSlow(window.output_padding), window.groups,
      std::nullopt);
  return backend == at::native::ConvBackend::Mkldnn ||
         backend == at::native::ConvBackend::MkldnnTranspose;
}

// oneDNN stores channels in blocks: of 16 with AVX-512, with exceptions for few
// channels. The rules below were found by counting the allocations of LibTorch
// 2.11 on such a machine.
constexpr int64_t kBlock = 16, kSmallBlock = 8;
constexpr int64_t kColours = 3;  // inputs with at most so many are not copied

// Returns `channels`, rounded up to whole blocks.
int64_t in_blocks(int64_t channels) {
  return (channels + kBlock - 1) / kBlock * kBlock;
}

// Returns the channels of the input's copy in a forward; 0 for no copy.
int64_t read_by_forward(int64_t channels) {
  if (channels <= kColours) return 0;
  return channels < kBlock ? channels : in_blocks(channels);
}

// Returns the channels of the copies of the input and of the output's gradient,
// in a computation of the weight's gradient. 0 means no copy.
std::pair<int64_t, int64_t> read_for_weights(int64_t input, int64_t gradient) {
  if (input <= kColours) return {0, in_blocks(gradient)};
  if (input > kSmallBlock) return {in_blocks(input), in_blocks(gradient)};
  return {kSmallBlock,
          gradient <= kSmallBlock ? kSmallBlock : in_blocks(gradient)};
}

// Returns the bytes of images of `sizes`, but with `channels` channels.
// `element`: bytes per element.
std::size_t image_bytes(at::IntArrayRef sizes, std::size_t element,
                        int64_t channels) {
  return static_cast<std::size_t>(c10::multiply_integers(sizes) / sizes[1] *
                                  channels) *
         element;
}

// Returns the bytes of the weight in oneDNN's layout.
std::size_t weight_bytes(const Tensor& weight) {
  const int64_t pairs = weight.size(0) * weight.size(1);
  return static_cast<std::size_t>(weight.numel() / pairs *
                                  in_blocks(weight.size(0)) *
                                  in_blocks(weight.size(1))) *
         weight.element_size();
}

// Returns a tensor that is counted as workspace.
Tensor workspace(std::size_t bytes) {
  const MemoryKindScope kind(MemoryKind::kWorkspace);
  return at::empty({static_cast<int64_t>(bytes)},
                   at::TensorOptions().dtype(at::kByte).device(at::kMeta));
}

// Counts the operands and the result in oneDNN's layout, in bytes. Returns the
// result, which the caller holds until it has been copied to the final tensor.
Tensor compute(std::size_t operands, std::size_t result) {
  workspace(operands + result);
  return workspace(result);
}

}  // namespace

Tensor meta_convolution(const Tensor& input, const Tensor& weight,
                        const std::optional<Tensor>&, at::IntArrayRef stride,
                        at::IntArrayRef padding, at::IntArrayRef dilation,
                        bool transposed, at::IntArrayRef output_padding,
                        int64_t groups) {
  std::vector<int64_t> sizes = {
      input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (int64_t d = 2; d < input.dim(); ++d) {
    const int64_t k = d - 2;
    const int64_t reach = dilation[k] * (weight.size(d) - 1);
    sizes.push_back(
        transposed
            ? (input.size(d) - 1) * stride[k] - 2 * padding[k] + reach +
                  output_padding[k] + 1
            : (input.size(d) + 2 * padding[k] - reach - 1) / stride[k] + 1);
  }
  const bool own_layout = has_own_layout(
      input, weight,
      {stride, padding, dilation, transposed, output_padding, groups});
  Tensor own;
  if (own_layout) {
    const std::size_t element = input.element_size();
    own = compute(
        image_bytes(input.sizes(), element, read_by_forward(input.size(1))) +
            weight_bytes(weight),
        image_bytes(sizes, element, in_blocks(sizes[1])));
  }
  return at::empty(sizes, input.options());
}

std::tuple<Tensor, Tensor, Tensor> meta_convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
    bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  const bool own_layout = has_own_layout(
      input, weight,
      {stride, padding, dilation, transposed, output_padding, groups});
  const auto bytes = [](const Tensor& image, int64_t channels) {
    return image_bytes(image.sizes(), image.element_size(), channels);
  };
  Tensor of_input, of_weight, of_bias;
  if (wanted[0]) {
    Tensor own;
    if (own_layout) {
      own = compute(
          bytes(gradient, in_blocks(gradient.size(1))) + weight_bytes(weight),
          bytes(input, in_blocks(input.size(1))));
    }
    of_input = at::empty_like(input);
  }
  if (wanted[1]) {
    Tensor own;
    if (own_layout) {
      const auto [of_image, of_gradient] =
          read_for_weights(input.size(1), gradient.size(1));
      own = compute(bytes(input, of_image) + bytes(gradient, of_gradient),
                    weight_bytes(weight));
    }
    of_weight = at::empty_like(weight);
  }
  if (wanted[2]) of_bias = at::empty({gradient.size(1)}, gradient.options());
  return {of_input, of_weight, of_bias};
}

}  // namespace gpipe::internal
