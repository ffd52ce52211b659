#include "models/layers/amoebanet_cell.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/relu.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace gpipe::models::amoebanet {

// ---- Operations

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

void append_relu_conv_bn(Nested& chain, const Conv2dOptions& options) {
  chain->push_back(ReLU());
  chain->push_back(Conv2d(Conv2dOptions(options).bias(false)));
  chain->push_back(BatchNorm2d(options.out_channels()));
}

AnyModule conv_1x1(int64_t channels, int64_t stride) {
  Nested chain;
  append_relu_conv_bn(chain,
                      Conv2dOptions(channels, channels, 1).stride(stride));
  return AnyModule(chain);
}

// Wide kernels use a quarter of the channels.
AnyModule conv_3x3(int64_t channels, int64_t stride) {
  const int64_t quarter = channels / 4;
  Nested chain;
  append_relu_conv_bn(chain, Conv2dOptions(channels, quarter, 1));
  append_relu_conv_bn(
      chain, Conv2dOptions(quarter, quarter, 3).stride(stride).padding(1));
  append_relu_conv_bn(chain, Conv2dOptions(quarter, channels, 1));
  return AnyModule(chain);
}

AnyModule conv_1x7_7x1(int64_t channels, int64_t stride) {
  const int64_t quarter = channels / 4;
  Nested chain;
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
  // In the order of Operation.
  static constexpr const char* kNames[] = {
      "none",     "avg_pool_3x3", "max_pool_3x3", "max_pool_2x2",
      "conv_1x1", "conv_3x3",     "conv_1x7_7x1"};
  return kNames[static_cast<std::size_t>(operation)];
}

}  // namespace

Nested relu_conv_bn(int64_t in_channels, int64_t out_channels) {
  Nested chain;
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

// ---- Cells

namespace {

// An operation and the state that it reads: 0 is the previous cell's output, 1
// the output of the cell before it, 2 the sum of the first pair, and so on.
struct Edge {
  std::size_t state;
  Operation operation;
};

// Two operations whose sum is a new state.
struct Pair {
  Edge first, second;
};

struct Genotype {
  std::vector<Pair> pairs;
  std::vector<std::size_t> concat;  // states that form the output
};

// Returns the normal cell of Real et al., "Regularized evolution for image
// classifier architecture search" (arXiv 1802.01548), appendix D, as in the
// authors' TensorFlow code and in torchgpipe. There the cell's output is states
// 0, 3, 4 and 6; the paper has 4, 5 and 6. The model sizes in the GPipe paper
// (arXiv 1811.06965) are those of the code.
Genotype normal_genotype() {
  Genotype normal;
  normal.pairs = {
      {{1, Operation::kConv1x1}, {1, Operation::kMaxPool3x3}},
      {{1, Operation::kNone}, {0, Operation::kConv1x7Then7x1}},
      {{0, Operation::kConv1x1}, {0, Operation::kConv1x7Then7x1}},
      {{2, Operation::kMaxPool3x3}, {2, Operation::kNone}},
      {{1, Operation::kAvgPool3x3}, {5, Operation::kConv1x1}},
  };
  normal.concat = {0, 3, 4, 6};
  return normal;
}

// Returns the reduction cell, which halves height and width and doubles the
// channels.
Genotype reduction_genotype() {
  Genotype reduction;
  reduction.pairs = {
      {{0, Operation::kMaxPool2x2}, {0, Operation::kMaxPool3x3}},
      {{2, Operation::kNone}, {1, Operation::kConv3x3}},
      {{2, Operation::kConv1x7Then7x1}, {2, Operation::kMaxPool3x3}},
      {{3, Operation::kNone}, {1, Operation::kMaxPool2x2}},
      {{2, Operation::kAvgPool3x3}, {3, Operation::kConv1x1}},
  };
  reduction.concat = {4, 5, 6};
  return reduction;
}

using torch::Tensor;
using torch::nn::AnyModule;

Genotype genotype_of(const Cell& cell) {
  return cell.reduction ? reduction_genotype() : normal_genotype();
}

AnyModule make_reduce2(const Cell& cell) {
  if (cell.after_reduction) {
    return AnyModule(FactorizedReduce(cell.older_channels, cell.channels));
  }
  if (cell.older_channels != cell.channels) {
    return AnyModule(relu_conv_bn(cell.older_channels, cell.channels));
  }
  return AnyModule(torch::nn::Identity());
}

OperationLayer make_operation(const Cell& cell, const Edge& edge) {
  OperationOptions options;
  options.operation = edge.operation;
  options.channels = cell.channels;
  // The cell's own states are already at the reduced size.
  options.stride = cell.reduction && edge.state < 2 ? 2 : 1;
  options.true_max_pool = cell.true_max_pool;
  return OperationLayer(options);
}

States to_states(Tensor x) { return {x, x}; }
States to_states(States states) { return states; }

// `Input` is Tensor for the first cell and States for the others, since a layer
// has one forward().
template <typename Input>
class CellImpl : public torch::nn::Cloneable<CellImpl<Input>> {
 public:
  explicit CellImpl(const Cell& cell)
      : cell_(cell), genotype_(genotype_of(cell)) {
    reset();
  }

  States forward(Input input) {
    auto [previous, older] = to_states(std::move(input));
    std::vector<Tensor> states = {reduce1_->forward(previous),
                                  reduce2_.forward(older)};
    std::size_t next = 0;
    const auto apply = [&](const Edge& edge) {
      return operations_->at<OperationLayerImpl>(next++).forward(
          states[edge.state]);
    };
    for (const Pair& pair : genotype_.pairs) {
      const Tensor first = apply(pair.first);
      states.push_back(first + apply(pair.second));
    }
    std::vector<Tensor> output;
    for (const std::size_t state : genotype_.concat) {
      output.push_back(states[state]);
    }
    return {at::cat(output, /*dim=*/1), previous};
  }

  void reset() override {
    reduce1_ = this->register_module(
        "reduce1", relu_conv_bn(cell_.previous_channels, cell_.channels));
    reduce2_ = make_reduce2(cell_);
    this->register_module("reduce2", reduce2_.ptr());
    operations_ = this->register_module("operations", torch::nn::ModuleList());
    for (const Pair& pair : genotype_.pairs) {
      operations_->push_back(make_operation(cell_, pair.first));
      operations_->push_back(make_operation(cell_, pair.second));
    }
  }

  void pretty_print(std::ostream& stream) const override {
    stream << "gpipe::models::amoebanet::Cell"
           << (cell_.reduction ? "(reduction)" : "(normal)");
  }

 private:
  Cell cell_;
  Genotype genotype_;
  Nested reduce1_{nullptr};
  AnyModule reduce2_;
  // Two per pair, in order.
  torch::nn::ModuleList operations_{nullptr};
};

}  // namespace

int64_t output_channels(const Cell& cell) {
  return cell.channels * static_cast<int64_t>(genotype_of(cell).concat.size());
}

void append_cell(torch::nn::Sequential& model, const std::string& name,
                 const Cell& cell) {
  if (cell.first) {
    model->push_back(name, std::make_shared<CellImpl<Tensor>>(cell));
  } else {
    model->push_back(name, std::make_shared<CellImpl<States>>(cell));
  }
}

}  // namespace gpipe::models::amoebanet
