// The building block of the deeper residual networks, as layers in a row (He et
// al., arXiv 1512.03385, figure 5).
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>

namespace gpipe::models {

// Channels of a bottleneck's output per channel of its middle.
constexpr int64_t kBottleneckExpansion = 4;

struct Bottleneck {
  int64_t in_channels;
  int64_t channels;  // of the middle; the output has 4 times as many
  int64_t stride;    // of the 3x3 convolution
};

// Whether the shortcut has to be projected to the shape of the output. Threads:
// pure function.
bool needs_projection(const Bottleneck& block);

// The projection, for the first block of a stage: a 1x1 convolution and
// BatchNorm. Threads: any; it draws weights from LibTorch's default generator.
torch::nn::Sequential make_projection(const Bottleneck& block);

// Appends 11 layers named `prefix` + "identity", "conv1", "bn1", "relu1",
// "conv2", "bn2", "relu2", "conv3", "bn3", "residual", "relu3": an input of
// [batch, in_channels, height, width] gives [batch, 4 * channels,
// height / stride, width / stride], rounded up. "identity" stashes the input
// and "residual" pops it, in a namespace of their own, and adds
// `projection`(it), or itself if the projection is empty.
//
// The layers draw their weights from LibTorch's default generator, in order.
//
// Errors: c10::Error for a name that `model` has already.
// Threads: any, while no other one uses `model`.
void append_bottleneck(torch::nn::Sequential& model, const std::string& prefix,
                       const Bottleneck& block,
                       const torch::nn::Sequential& projection);

}  // namespace gpipe::models
