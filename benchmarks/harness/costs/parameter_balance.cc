#include "benchmarks/harness/costs/parameter_balance.h"

#include "balancing/partition.h"

namespace gpipe::benchmarks {

std::vector<int64_t> balance_by_parameters(const torch::nn::Sequential& model,
                                           int64_t partitions) {
  std::vector<double> costs;
  for (const auto& layer : model->children()) {
    double& cost = costs.emplace_back(1);
    for (const auto& parameter : layer->parameters()) {
      cost += static_cast<double>(parameter.nbytes());
    }
  }
  return balancing::balance_cost(costs, partitions);
}

}  // namespace gpipe::benchmarks
