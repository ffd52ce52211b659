// SPDX-License-Identifier: Apache-2.0
//
// A program of a project that is built with CMake. It trains a model with a
// pipeline of two partitions, then in as many processes as a launcher has
// started (without one: in this process).

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <iostream>
#include <vector>

#include "balancing/balancing.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/world.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/version.h"

namespace {

torch::nn::Sequential layers() {
  return torch::nn::Sequential(torch::nn::Linear(16, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 10));
}

torch::Tensor mean_square(const torch::Tensor& output,
                          const torch::Tensor& target) {
  return (output - target).pow(2).mean();
}

}  // namespace

int main() {
  torch::manual_seed(0);
  const torch::Tensor input = torch::randn({8, 16});
  const torch::Tensor target = torch::zeros({8, 10});

  const auto model = layers();
  const auto balance = gpipe::balancing::balance_by_size(2, model, input);
  gpipe::GPipe pipeline(model, gpipe::GPipeOptions(balance).chunks(4));
  torch::optim::SGD optimizer(pipeline->parameters(), 0.1);
  const auto schedule = gpipe::one_forward_one_backward(2, 4);
  const auto before =
      pipeline->train_step(input, target, mean_square, schedule).loss;
  optimizer.step();
  optimizer.zero_grad();
  const auto after =
      pipeline->train_step(input, target, mean_square, schedule).loss;
  std::cout << "gpipe " << GPIPE_VERSION << ", loss " << before.item<double>()
            << ", then " << after.item<double>() << "\n";
  if (!(after.item<double>() < before.item<double>())) return 1;

  const auto world =
      gpipe::World::connect(gpipe::WorldOptions::from_environment());
  std::vector<int64_t> cut(world->size(), 1);
  cut.back() += static_cast<int64_t>(model->size()) - world->size();
  gpipe::DistributedPipeline distributed(layers(), cut, world);
  const auto result = distributed->train_step(
      input, target, mean_square,
      gpipe::one_forward_one_backward(world->size(), 4));
  std::cout << "rank " << world->rank() << " of " << world->size()
            << ", loss of " << result.losses.size() << " micro-batches\n";
  return 0;
}
