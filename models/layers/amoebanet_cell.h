// The cells of AmoebaNet-D and their operations as layers.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <tuple>

#include "gpipe/sequential.h"

namespace gpipe::models::amoebanet {

// An operation on a tensor that keeps the number of channels.
enum class Operation {
  kNone,
  kAvgPool3x3,
  kMaxPool3x3,  // an average pool, unless AmoebaNetOptions::true_max_pool
  kMaxPool2x2,
  kConv1x1,
  kConv3x3,
  kConv1x7Then7x1,
};

// ---- Operations as layers, from a torch::Tensor to a torch::Tensor of [batch,
// ---- channels, height, width]
//
// forward() throws c10::Error if the input has another shape.
// Threads: any thread may construct a layer, which draws weights from
// LibTorch's default generator. Only one thread at a time may call a layer,
// since BatchNorm writes to its buffers.

// Returns ReLU, a 1x1 convolution without bias, and BatchNorm.
Nested relu_conv_bn(int64_t in_channels, int64_t out_channels);

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

// ---- Cells

// The output of a layer: its result, and the result of the layer before it.
using States = std::tuple<torch::Tensor, torch::Tensor>;

struct Cell {
  int64_t channels;              // of each operation, a multiple of 4
  int64_t previous_channels;     // of the first input state
  int64_t older_channels;        // of the second input state
  bool first = false;            // takes one torch::Tensor as both states
  bool reduction = false;        // halves height and width
  bool after_reduction = false;  // the second state is twice as large
  bool true_max_pool = false;    // see AmoebaNetOptions
};

// Returns the number of channels of a cell's output.
//
// Threads: pure function.
int64_t output_channels(const Cell& cell);

// Appends a layer that takes and returns States.
//
// The layer brings both states to `channels` channels and to the size of the
// first ("reduce1", "reduce2"). It applies the operations of the genotype
// ("operations") to pairs of states; each sum is one more state. It
// concatenates some of the states. The weights are drawn from LibTorch's
// default generator, in this order.
//
// Throws c10::Error if `model` already has a layer called `name`.
// Threads: any thread may call this while no other thread uses `model`.
void append_cell(torch::nn::Sequential& model, const std::string& name,
                 const Cell& cell);

}  // namespace gpipe::models::amoebanet
