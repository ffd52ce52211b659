#include "benchmarks/harness/experiment/optimizer.h"

#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <utility>

namespace gpipe::benchmarks {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    Optimizer kind, std::vector<at::Tensor> parameters, double learning_rate) {
  if (kind == Optimizer::kRmsprop) {
    return std::make_unique<torch::optim::RMSprop>(
        std::move(parameters), torch::optim::RMSpropOptions(learning_rate));
  }
  return std::make_unique<torch::optim::SGD>(
      std::move(parameters), torch::optim::SGDOptions(learning_rate));
}

std::vector<at::Tensor> state_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> tensors;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto* of_rmsprop =
        dynamic_cast<const torch::optim::RMSpropParamState*>(state.get());
    if (of_rmsprop == nullptr) continue;  // SGD without momentum has no state
    tensors.push_back(of_rmsprop->square_avg());
  }
  return tensors;
}

}  // namespace gpipe::benchmarks
