#include "models/zoo/bottleneck.h"

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include <memory>

#include "gpipe/skip.h"

namespace gpipe::models {
namespace {

using torch::nn::BatchNorm2d;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::ReLU;
using torch::nn::Sequential;
using torch::nn::SequentialImpl;

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

}  // namespace

bool needs_projection(const Bottleneck& block) {
  return block.stride != 1 ||
         block.in_channels != block.channels * kBottleneckExpansion;
}

Sequential make_projection(const Bottleneck& block) {
  const int64_t out_channels = block.channels * kBottleneckExpansion;
  Sequential projection;
  projection->push_back(conv1x1(block.in_channels, out_channels, block.stride));
  projection->push_back(BatchNorm2d(out_channels));
  return projection;
}

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

}  // namespace gpipe::models
