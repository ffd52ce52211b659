#include "models/zoo/amoebanet_cell.h"

#include <ATen/ops/cat.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <cstddef>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "models/zoo/amoebanet_genotype.h"
#include "models/zoo/amoebanet_operations.h"

namespace gpipe::models::amoebanet {
namespace {

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
  Chain reduce1_{nullptr};
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
