// Tests how often a step uses the devices besides what its layers do: launches,
// copies, events, and waits of the host. Runs on the simulated accelerators
// only.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/mean_square.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe {
namespace {

using simulated::Counts;
using simulated::hpu;
using testing::mean_square;
using torch::Tensor;

constexpr int kMicrobatches = 8;

class StepCounts : public simulated::SimulatedTest {};

torch::nn::Sequential model_of(int layers) {
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int k = 0; k < layers; ++k) model->push_back(torch::nn::Linear(4, 4));
  return model;
}

// Returns the launches of the layers, the loss and their backward, for all
// micro-batches of a model on one device.
int64_t launches_of_layers(int layers) {
  torch::nn::Sequential model = model_of(layers);
  model->to(hpu(0));
  const Tensor x = torch::randn({2, 4}).to(hpu(0));
  const auto launches = [&] {
    const Counts before = simulated::counts();
    mean_square(model->forward(x), x).backward();
    return (simulated::counts() - before).launches;
  };
  launches();  // makes the gradients; later ones are added
  model->zero_grad();
  return kMicrobatches * launches();
}

// Returns the counts of a step, after one step that is not counted.
Counts counts_of_step(const std::string& schedule, int ranks) {
  std::vector<torch::Device> devices;
  for (int k = 0; k < ranks; ++k) devices.push_back(hpu(k));
  GPipe pipeline(model_of(4),
                 GPipeOptions(std::vector<int64_t>(ranks, 4 / ranks))
                     .devices(devices)
                     .checkpoint(Checkpoint::kNever));
  const Tensor x = torch::randn({2 * kMicrobatches, 4}).to(devices.front());
  const Tensor target = torch::randn({2 * kMicrobatches, 4}).to(devices.back());
  const Schedule actions =
      named_schedule(schedule, ranks, kMicrobatches, /*stages_per_rank=*/1);
  pipeline->train_step(x, target, mean_square, actions);
  pipeline->zero_grad();
  simulated::synchronize();
  const Counts before = simulated::counts();
  pipeline->train_step(x, target, mean_square, actions);
  return simulated::counts() - before;
}

TEST_F(StepCounts, OfFillDrainAnd1F1B) {
  const int64_t of_layers = launches_of_layers(4);
  for (const int ranks : {2, 4}) {
    for (const std::string schedule : {"fill-drain", "1f1b"}) {
      const Counts found = counts_of_step(schedule, ranks);
      std::cout << schedule << ", " << ranks << " devices: host waits "
                << found.host_waits << ", launches by us "
                << found.launches - of_layers << " of " << found.launches
                << ", event records " << found.event_records
                << ", stream waits " << found.stream_waits << ", copies "
                << found.copies << "\n";
      const int64_t actions = 2 * kMicrobatches, edges = 2 * ranks;
      EXPECT_EQ(found.host_waits,
                ranks * (actions -
                         static_cast<int64_t>(internal::RunAhead::kActions)));
      // An activation and a gradient for each micro-batch and boundary.
      EXPECT_EQ(found.copies, (ranks - 1) * actions);
      // Besides: each loss times its share of the rows, and the sums of the
      // losses and of the gradients of 8 parameters.
      EXPECT_EQ(found.launches - of_layers,
                found.copies + kMicrobatches + (1 + 8) * (kMicrobatches - 1));
      // An action records its output and its end, a copy its end. The worker's
      // streams wait for the caller's before the step, and these for them after
      // it.
      EXPECT_EQ(found.event_records,
                2 * ranks * actions + found.copies + edges);
      EXPECT_EQ(found.stream_waits, 2 * found.copies + edges);
    }
  }
}

}  // namespace
}  // namespace gpipe
