#include "models/zoo/amoebanet_operations.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/relu.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <utility>

namespace gpipe::models::amoebanet {
namespace {

using torch::nn::AnyModule;
using torch::nn::AvgPool2d;
using torch::nn::AvgPool2dOptions;
using torch::nn::BatchNorm2d;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::Identity;
using torch::nn::MaxPool2d;
using torch::nn::MaxPool2dOptions;
using torch::nn::ReLU;

void append_relu_conv_bn(Chain& chain, const Conv2dOptions& options) {
  chain->push_back(ReLU());
  chain->push_back(Conv2d(Conv2dOptions(options).bias(false)));
  chain->push_back(BatchNorm2d(options.out_channels()));
}

AnyModule conv_1x1(int64_t channels, int64_t stride) {
  Chain chain;
  append_relu_conv_bn(chain,
                      Conv2dOptions(channels, channels, 1).stride(stride));
  return AnyModule(chain);
}

// Wide kernels use a quarter of the channels.
AnyModule conv_3x3(int64_t channels, int64_t stride) {
  const int64_t quarter = channels / 4;
  Chain chain;
  append_relu_conv_bn(chain, Conv2dOptions(channels, quarter, 1));
  append_relu_conv_bn(
      chain, Conv2dOptions(quarter, quarter, 3).stride(stride).padding(1));
  append_relu_conv_bn(chain, Conv2dOptions(quarter, channels, 1));
  return AnyModule(chain);
}

AnyModule conv_1x7_7x1(int64_t channels, int64_t stride) {
  const int64_t quarter = channels / 4;
  Chain chain;
  append_relu_conv_bn(chain, Conv2dOptions(channels, quarter, 1));
  append_relu_conv_bn(chain, Conv2dOptions(quarter, quarter, {1, 7})
                                 .stride({1, stride})
                                 .padding({0, 3}));
  append_relu_conv_bn(chain, Conv2dOptions(quarter, quarter, {7, 1})
                                 .stride({stride, 1})
                                 .padding({3, 0}));
  append_relu_conv_bn(chain, Conv2dOptions(quarter, channels, 1));
  return AnyModule(chain);
}

AnyModule avg_pool_3x3(int64_t stride) {
  return AnyModule(AvgPool2d(
      AvgPool2dOptions(3).stride(stride).padding(1).count_include_pad(false)));
}

AnyModule max_pool_3x3(int64_t stride) {
  return AnyModule(MaxPool2d(MaxPool2dOptions(3).stride(stride).padding(1)));
}

AnyModule make_module(const OperationOptions& options) {
  const int64_t channels = options.channels;
  const int64_t stride = options.stride;
  switch (options.operation) {
    case Operation::kNone:
      if (stride == 1) return AnyModule(Identity());
      return AnyModule(FactorizedReduce(channels, channels));
    case Operation::kAvgPool3x3:
      return avg_pool_3x3(stride);
    case Operation::kMaxPool3x3:
      return options.true_max_pool ? max_pool_3x3(stride)
                                   : avg_pool_3x3(stride);
    case Operation::kMaxPool2x2:
      return AnyModule(MaxPool2d(MaxPool2dOptions(2).stride(stride)));
    case Operation::kConv1x1:
      return conv_1x1(channels, stride);
    case Operation::kConv3x3:
      return conv_3x3(channels, stride);
    case Operation::kConv1x7Then7x1:
      return conv_1x7_7x1(channels, stride);
  }
  TORCH_INTERNAL_ASSERT(false, "no such operation");
}

const char* to_string(Operation operation) {
  switch (operation) {
    case Operation::kNone:
      return "none";
    case Operation::kAvgPool3x3:
      return "avg_pool_3x3";
    case Operation::kMaxPool3x3:
      return "max_pool_3x3";
    case Operation::kMaxPool2x2:
      return "max_pool_2x2";
    case Operation::kConv1x1:
      return "conv_1x1";
    case Operation::kConv3x3:
      return "conv_3x3";
    case Operation::kConv1x7Then7x1:
      return "conv_1x7_7x1";
  }
  TORCH_INTERNAL_ASSERT(false, "no such operation");
}

}  // namespace

torch::Tensor ChainImpl::forward(torch::Tensor x) {
  return SequentialImpl::forward(std::move(x));
}

std::shared_ptr<torch::nn::Module> ChainImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<ChainImpl>();
  for (const AnyModule& layer : *this) copy->push_back(layer.clone(device));
  return copy;
}

Chain relu_conv_bn(int64_t in_channels, int64_t out_channels) {
  Chain chain;
  append_relu_conv_bn(chain, Conv2dOptions(in_channels, out_channels, 1));
  return chain;
}

FactorizedReduceImpl::FactorizedReduceImpl(int64_t in_channels,
                                           int64_t out_channels)
    : in_channels_(in_channels), out_channels_(out_channels) {
  reset();
}

torch::Tensor FactorizedReduceImpl::forward(torch::Tensor x) {
  x = at::relu(x);
  // A column and a row of zeros replace those that are shifted out.
  const auto shifted = at::constant_pad_nd(
      x.slice(/*dim=*/2, /*start=*/1).slice(/*dim=*/3, /*start=*/1),
      {0, 1, 0, 1});
  x = at::cat({conv1_->forward(x), conv2_->forward(shifted)}, /*dim=*/1);
  return bn_->forward(x);
}

void FactorizedReduceImpl::reset() {
  const auto options =
      Conv2dOptions(in_channels_, out_channels_ / 2, 1).stride(2).bias(false);
  conv1_ = register_module("conv1", Conv2d(options));
  conv2_ = register_module("conv2", Conv2d(options));
  bn_ = register_module("bn", BatchNorm2d(out_channels_));
}

void FactorizedReduceImpl::pretty_print(std::ostream& stream) const {
  stream << "gpipe::models::amoebanet::FactorizedReduce";
}

OperationLayerImpl::OperationLayerImpl(const OperationOptions& options)
    : options_(options) {
  reset();
}

torch::Tensor OperationLayerImpl::forward(torch::Tensor x) {
  return module_.forward(std::move(x));
}

void OperationLayerImpl::reset() {
  module_ = make_module(options_);
  register_module("module", module_.ptr());
}

void OperationLayerImpl::pretty_print(std::ostream& stream) const {
  stream << "gpipe::models::amoebanet::Operation["
         << to_string(options_.operation) << "]";
}

}  // namespace gpipe::models::amoebanet
