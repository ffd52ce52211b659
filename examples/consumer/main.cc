// SPDX-License-Identifier: Apache-2.0
//
// A program of another Bazel project. It trains its own model with a planned
// pipeline of two partitions, then in several processes. It places layers on
// devices without a pipeline, and builds one of gpipe's models without memory.

#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <iostream>
#include <vector>

#include "balancing/plan.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/world.h"
#include "gpipe/gpipe.h"
#include "gpipe/meta.h"
#include "gpipe/placement.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"
#include "gpipe/summary.h"
#include "models/classifier.h"
#include "models/transformer.h"
#include "models/weights/state_dict.h"

int main() {
  const torch::Tensor x = torch::randn({8, 16});
  const auto classifier = consumer::classifier();
  const auto plan = gpipe::balancing::plan(
      classifier, x, {torch::Device(torch::kCPU), torch::Device(torch::kCPU)},
      gpipe::balancing::PlanOptions().chunks({4}).profile(
          gpipe::balancing::TimeOptions().timeout(0)));
  std::cout << plan;
  gpipe::GPipe model(classifier, plan.options());

  const torch::Tensor y = model->forward(x);
  y.sum().backward();

  for (const auto& parameter : model->parameters()) {
    if (!parameter.grad().defined()) {
      std::cerr << "a parameter has no gradient\n";
      return 1;
    }
  }
  std::cout << "output " << y.sizes() << "\n";

  // Trains by the planned schedule, with the loss computed in the pipeline.
  const gpipe::Schedule schedule = plan.schedule();
  gpipe::validate(schedule);
  gpipe::Costs costs;
  costs.forward = costs.recompute = std::vector<double>(plan.balance.size(), 1);
  costs.backward_input = costs.backward_weight = costs.forward;
  costs.backward = std::vector<double>(plan.balance.size(), 2);
  std::cout << gpipe::to_text(gpipe::simulate(schedule, costs), 60);
  const auto mean_square = [](const torch::Tensor& output,
                              const torch::Tensor& target) {
    return (output - target).pow(2).mean();
  };
  const torch::Tensor target = torch::zeros({8, 10});
  const auto result = model->train_step(x, target, mean_square, schedule);
  std::cout << "loss of " << result.losses.size() << " micro-batches\n";

  // Trains in as many processes as the launcher (for example //tools:launch)
  // has started, with one stage each. Without a launcher there is one process.
  const auto world =
      gpipe::World::connect(gpipe::WorldOptions::from_environment());
  std::vector<int64_t> balance(world->size(), 1);
  const auto layers = consumer::classifier();
  balance.back() += static_cast<int64_t>(layers->size()) - world->size();
  gpipe::DistributedPipeline distributed(layers, balance, world);
  const auto distributed_result = distributed->train_step(
      x, target, mean_square,
      gpipe::one_forward_one_backward(world->size(), 4));
  std::cout << "rank " << world->rank() << " of " << world->size()
            << ", loss of " << distributed_result.losses.size()
            << " micro-batches\n";

  // Places the parts of a module on devices, without a pipeline, and loads the
  // weights of another module.
  auto placed =
      gpipe::parallelize_pipeline(consumer::classifier(), {{"", "cpu"}});
  gpipe::load_state_dict(*placed, gpipe::state_dict(*layers));
  std::cout << "placed: " << gpipe::state_dict(*placed).size()
            << " tensors, output " << gpipe::placed_forward(placed, x).sizes()
            << "\n";

  const auto transformer = [] {
    gpipe::MetaGuard meta;
    return gpipe::models::transformer();
  }();
  const torch::Tensor tokens =
      torch::empty({32, 1024}, torch::dtype(torch::kLong).device(torch::kMeta));
  std::cout << gpipe::summary(transformer, {4, 5}, tokens);
  return 0;
}
