#include "tools/gpu/gpu_steps.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstddef>
#include <limits>

namespace gpipe::tools {

at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  return output.sub(target.to(output.device())).pow(2).mean();
}

torch::nn::Sequential wide_layers(int64_t partitions, int64_t width) {
  torch::nn::Sequential layers;
  for (int64_t j = 0; j < partitions; ++j) {
    layers->push_back(torch::nn::Linear(j == 0 ? 1 : width, width));
    layers->push_back(torch::nn::Tanh());
    layers->push_back(torch::nn::Linear(width, j + 1 < partitions ? width : 1));
  }
  return layers;
}

std::vector<at::Tensor> results_of_step(GPipe& pipeline,
                                        const at::Tensor& input,
                                        const at::Tensor& target,
                                        const Schedule& schedule,
                                        uint64_t seed) {
  torch::manual_seed(seed);
  const StepResult step = pipeline->train_step(input.to(pipeline->device()),
                                               target, squared_error, schedule);
  std::vector<at::Tensor> results{step.loss.detach().to(torch::kCPU)};
  for (const auto& parameter : pipeline->parameters()) {
    results.push_back(parameter.grad().to(torch::kCPU, parameter.scalar_type(),
                                          /*non_blocking=*/false,
                                          /*copy=*/true));
  }
  pipeline->zero_grad();
  return results;
}

double largest_difference(const std::vector<at::Tensor>& left,
                          const std::vector<at::Tensor>& right) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (left.size() != right.size()) return kInfinity;
  double largest = 0;
  for (std::size_t k = 0; k < left.size(); ++k) {
    if (left[k].sizes() != right[k].sizes()) return kInfinity;
    if (!left[k].isfinite().all().item<bool>() ||
        !right[k].isfinite().all().item<bool>()) {
      return kInfinity;
    }
    if (left[k].equal(right[k])) continue;
    const double difference = left[k].sub(right[k]).abs().max().item<double>();
    const double scale = right[k].abs().max().item<double>();
    largest = std::max(largest, scale > 0 ? difference / scale : kInfinity);
  }
  return largest;
}

}  // namespace gpipe::tools
