// The operations of AmoebaNet's cells as layers, from a torch::Tensor to a
// torch::Tensor of [batch, channels, height, width]; see amoebanet_genotype.h
// for their source.
//
// forward() throws c10::Error if the input has another shape.
// Threads: any thread may construct a layer, which draws weights from
// LibTorch's default generator. Only one thread at a time may call a layer,
// since BatchNorm writes to its buffers.
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

#include "models/zoo/amoebanet_genotype.h"

namespace gpipe::models::amoebanet {

// A sequence of layers that an AnyModule can hold. It cannot hold a Sequential,
// whose forward() is a template.
class ChainImpl : public torch::nn::SequentialImpl {
 public:
  using torch::nn::SequentialImpl::SequentialImpl;

  torch::Tensor forward(torch::Tensor x);

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
};
TORCH_MODULE(Chain);

// Returns ReLU, a 1x1 convolution without bias, and BatchNorm.
Chain relu_conv_bn(int64_t in_channels, int64_t out_channels);

// Halves height and width, rounded up, without losing whole rows or columns of
// pixels. One half of the output channels reads every other pixel of every
// other row; the other half reads the pixels one further down and to the right.
// `out_channels` must be even.
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
  int64_t stride = 1;          // distance in input pixels between output pixels
  bool true_max_pool = false;  // whether kMaxPool3x3 is a maximum pool
};

// One operation of a genotype, as a layer.
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
