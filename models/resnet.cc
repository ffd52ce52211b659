#include "models/resnet.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <array>
#include <cstddef>
#include <string>

#include "models/zoo/bottleneck.h"

namespace gpipe::models {
namespace {

using namespace torch::nn;  // NOLINT: the layers' names, and nothing else

constexpr int64_t kStemChannels = 64;

// Appends the bottlenecks of one stage and returns their output channels. The
// projection is made before the layers of its block, although it is used after
// them, because the Python models draw random numbers in that order.
int64_t append_stage(Sequential& model, std::size_t stage, int64_t blocks,
                     int64_t in_channels) {
  Bottleneck block;
  block.in_channels = in_channels;
  block.channels = kStemChannels << stage;
  block.stride = stage == 0 ? 1 : 2;
  for (int64_t k = 0; k < blocks; ++k) {
    Sequential projection;
    if (needs_projection(block)) projection = make_projection(block);
    append_bottleneck(
        model,
        "layer" + std::to_string(stage + 1) + "_" + std::to_string(k) + "_",
        block, projection);
    block.in_channels = block.channels * kBottleneckExpansion;
    block.stride = 1;
  }
  return block.in_channels;
}

// Sets the weights of He et al., "Delving deep into rectifiers" (arXiv
// 1502.01852), equation 14. BatchNorm layers already start at weight 1 and bias
// 0.
void initialize(Sequential& model) {
  for (const auto& module : model->modules(/*include_self=*/false)) {
    if (auto* conv = module->as<Conv2d>()) {
      init::kaiming_normal_(conv->weight, /*a=*/0, torch::kFanOut,
                            torch::kReLU);
    }
  }
}

Sequential resnet(const std::array<int64_t, 4>& blocks, int64_t num_classes) {
  TORCH_CHECK_VALUE(num_classes >= 1,
                    "a network needs at least 1 class, but num_classes is ",
                    num_classes);
  Sequential model;
  model->push_back(
      "conv1",
      Conv2d(
          Conv2dOptions(3, kStemChannels, 7).stride(2).padding(3).bias(false)));
  model->push_back("bn1", BatchNorm2d(kStemChannels));
  model->push_back("relu", ReLU());
  model->push_back("maxpool",
                   MaxPool2d(MaxPool2dOptions(3).stride(2).padding(1)));
  int64_t channels = kStemChannels;
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    channels = append_stage(model, stage, blocks[stage], channels);
  }
  model->push_back("avgpool", AdaptiveAvgPool2d(1));
  model->push_back("flat", Flatten());
  model->push_back("fc", Linear(channels, num_classes));
  initialize(model);
  return model;
}

}  // namespace

Sequential resnet101(int64_t num_classes) {
  return resnet({3, 4, 23, 3}, num_classes);
}

Sequential resnet50(int64_t num_classes) {
  return resnet({3, 4, 6, 3}, num_classes);
}

}  // namespace gpipe::models
