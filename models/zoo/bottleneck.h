// The building block of the deeper residual networks, as consecutive layers (He
// et al., arXiv 1512.03385, figure 5).
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>

namespace gpipe::models {

// Output channels of a bottleneck per channel in its middle.
constexpr int64_t kBottleneckExpansion = 4;

struct Bottleneck {
  int64_t in_channels;
  int64_t channels;  // in the middle; the output has 4 times as many
  int64_t stride;    // of the 3x3 convolution
};

// Returns whether the shortcut must be projected to the shape of the output.
//
// Threads: pure function.
bool needs_projection(const Bottleneck& block);

// Returns the projection for the first block of a stage: a 1x1 convolution and
// BatchNorm. It draws weights from LibTorch's default generator.
//
// Threads: may be called from any thread.
torch::nn::Sequential make_projection(const Bottleneck& block);

// Appends 11 layers named `prefix` + "identity", "conv1", "bn1", "relu1",
// "conv2", "bn2", "relu2", "conv3", "bn3", "residual", "relu3". They map
// [batch, in_channels, height, width] to [batch, 4 * channels, height / stride,
// width / stride], rounded up. "identity" stashes the input in a namespace of
// its own. "residual" pops it, applies `projection` (if it is not empty), and
// adds the result.
//
// The layers draw their weights from LibTorch's default generator, in order.
//
// Throws c10::Error if `model` already has a layer with one of the names.
// Threads: any thread may call this while no other thread uses `model`.
void append_bottleneck(torch::nn::Sequential& model, const std::string& prefix,
                       const Bottleneck& block,
                       const torch::nn::Sequential& projection);

}  // namespace gpipe::models
