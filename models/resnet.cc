#include "models/resnet.h"

#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <array>
#include <cstddef>
#include <memory>
#include <ostream>
#include <string>

#include "gpipe/skip.h"

namespace gpipe::models {
namespace {

using namespace torch::nn;  // NOLINT: the layers' names, and nothing else

// ---- The bottleneck, the building block of the deeper residual networks (He
// et
// ---- al., arXiv 1512.03385, figure 5)

// Output channels of a bottleneck per channel in its middle.
constexpr int64_t kBottleneckExpansion = 4;

struct Bottleneck {
  int64_t in_channels;
  int64_t channels;  // in the middle; the output has 4 times as many
  int64_t stride;    // of the 3x3 convolution
};

constexpr char kIdentity[] = "identity";

class IdentityImpl : public torch::nn::Cloneable<IdentityImpl>,
                     public Skippable {
 public:
  explicit IdentityImpl(const Namespace& ns) : Skippable({{kIdentity}, {}}) {
    isolate(ns);
  }

  torch::Tensor forward(torch::Tensor x) {
    stash(kIdentity, x);
    return x;
  }

  void reset() override {}
  void pretty_print(std::ostream& stream) const override {
    stream << "gpipe::models::Identity()";
  }
};
TORCH_MODULE(Identity);

class ResidualImpl : public torch::nn::Cloneable<ResidualImpl>,
                     public Skippable {
 public:
  ResidualImpl(const Namespace& ns, const Sequential& projection)
      : Skippable({{}, {kIdentity}}), projection_(projection) {
    isolate(ns);
    register_projection();
  }

  torch::Tensor forward(torch::Tensor x) {
    torch::Tensor identity = *pop(kIdentity);
    if (!projection_->is_empty()) identity = projection_->forward(identity);
    return x + identity;
  }

  // clone() calls this on a copy that still holds the original's projection.
  void reset() override {
    projection_ = Sequential(
        std::dynamic_pointer_cast<SequentialImpl>(projection_->clone()));
    register_projection();
  }
  void pretty_print(std::ostream& stream) const override {
    stream << "gpipe::models::Residual";
  }

 private:
  void register_projection() {
    if (!projection_->is_empty()) register_module("downsample", projection_);
  }

  Sequential projection_;
};
TORCH_MODULE(Residual);

Conv2d conv1x1(int64_t in_channels, int64_t out_channels, int64_t stride) {
  return Conv2d(
      Conv2dOptions(in_channels, out_channels, 1).stride(stride).bias(false));
}

Conv2d conv3x3(int64_t channels, int64_t stride) {
  return Conv2d(Conv2dOptions(channels, channels, 3)
                    .stride(stride)
                    .padding(1)
                    .bias(false));
}

// Returns whether the shortcut must be projected to the shape of the output.
bool needs_projection(const Bottleneck& block) {
  return block.stride != 1 ||
         block.in_channels != block.channels * kBottleneckExpansion;
}

// Returns the projection for the first block of a stage: a 1x1 convolution and
// BatchNorm.
Sequential make_projection(const Bottleneck& block) {
  const int64_t out_channels = block.channels * kBottleneckExpansion;
  Sequential projection;
  projection->push_back(conv1x1(block.in_channels, out_channels, block.stride));
  projection->push_back(BatchNorm2d(out_channels));
  return projection;
}

// Appends 11 layers named `prefix` + "identity", "conv1", "bn1", "relu1",
// "conv2", "bn2", "relu2", "conv3", "bn3", "residual", "relu3". They map
// [batch, in_channels, height, width] to [batch, 4 * channels, height / stride,
// width / stride], rounded up. "identity" stashes the input in a namespace of
// its own. "residual" pops it, applies `projection` (if it is not empty), and
// adds the result.
//
// The layers draw their weights from LibTorch's default generator, in order.
void append_bottleneck(Sequential& model, const std::string& prefix,
                       const Bottleneck& block, const Sequential& projection) {
  const int64_t channels = block.channels;
  const int64_t out_channels = channels * kBottleneckExpansion;
  const Namespace ns;
  model->push_back(prefix + "identity", Identity(ns));
  model->push_back(prefix + "conv1", conv1x1(block.in_channels, channels, 1));
  model->push_back(prefix + "bn1", BatchNorm2d(channels));
  model->push_back(prefix + "relu1", ReLU());
  model->push_back(prefix + "conv2", conv3x3(channels, block.stride));
  model->push_back(prefix + "bn2", BatchNorm2d(channels));
  model->push_back(prefix + "relu2", ReLU());
  model->push_back(prefix + "conv3", conv1x1(channels, out_channels, 1));
  model->push_back(prefix + "bn3", BatchNorm2d(out_channels));
  model->push_back(prefix + "residual", Residual(ns, projection));
  model->push_back(prefix + "relu3", ReLU());
}

// ---- The network

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
