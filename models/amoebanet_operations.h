// The operations of AmoebaNet's cells as layers: a torch::Tensor in and out,
// [batch, channels, height, width]; see amoebanet_genotype.h for their source.
//
// Errors: c10::Error from forward() for an input of another shape.
// Threads: any may make a layer, with weights from LibTorch's default
// generator; one at a time may call it, since BatchNorm writes to its buffers.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>

#include "models/amoebanet_genotype.h"

namespace gpipe::models::amoebanet {

// Layers in a row that an AnyModule can hold, which Sequential itself, whose
// forward() is a template, is not.
class ChainImpl : public torch::nn::SequentialImpl {
 public:
  using torch::nn::SequentialImpl::SequentialImpl;

  torch::Tensor forward(torch::Tensor x);

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
};
TORCH_MODULE(Chain);

// ReLU, a 1x1 convolution without bias, BatchNorm.
Chain relu_conv_bn(int64_t in_channels, int64_t out_channels);

// Halves height and width, rounded up, without dropping a pixel: one half of
// the output's channels sees every other pixel, the other half sees those one
// further down and to the right. `out_channels` is even.
class FactorizedReduceImpl : public torch::nn::Cloneable<FactorizedReduceImpl> {
 public:
  FactorizedReduceImpl(int64_t in_channels, int64_t out_channels);

  torch::Tensor forward(torch::Tensor x);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

 private:
  int64_t in_channels_, out_channels_;
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  torch::nn::BatchNorm2d bn_{nullptr};
};
TORCH_MODULE(FactorizedReduce);

struct OperationOptions {
  Operation operation;
  int64_t channels;            // of input and output, a multiple of 4
  int64_t stride = 1;          // of the output's pixels, in pixels of the input
  bool true_max_pool = false;  // whether kMaxPool3x3 is one
};

// An operation of a genotype.
class OperationLayerImpl : public torch::nn::Cloneable<OperationLayerImpl> {
 public:
  explicit OperationLayerImpl(const OperationOptions& options);

  torch::Tensor forward(torch::Tensor x);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

 private:
  OperationOptions options_;
  torch::nn::AnyModule module_;
};
TORCH_MODULE(OperationLayer);

}  // namespace gpipe::models::amoebanet
