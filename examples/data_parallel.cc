// Trains a small network in several processes, each with a replica of it and
// its own part of the data.
//
//   ./bazelw build //examples:data_parallel
//   ./bazelw run //tools:launch -- --nproc=2 --
//       bazel-bin/examples/data_parallel
#include <torch/torch.h>

#include <iostream>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/world.h"
#include "gpipe/schedule.h"

int main() {
  const auto world =
      gpipe::World::connect(gpipe::WorldOptions::from_environment());
  torch::nn::Sequential model(torch::nn::Linear(2, 256), torch::nn::ReLU(),
                              torch::nn::Linear(256, 256), torch::nn::ReLU(),
                              torch::nn::Linear(256, 2));
  // One partition with all layers, and a replica of it in each process.
  gpipe::DistributedPipeline replica(
      model, gpipe::DistributedOptions({5}).data_parallel(world->size()),
      world);
  torch::optim::Adam optimizer(replica->parameters(), /*lr=*/1e-3);
  const auto whole_batch = gpipe::fill_drain(/*stages=*/1, /*microbatches=*/1);

  torch::manual_seed(world->rank());  // each replica draws other points
  for (int step = 1; step <= 60; ++step) {
    // The task: is a point inside a ring?
    const auto points = torch::rand({512, 2}) * 2 - 1;
    const auto radius = points.norm(2, /*dim=*/1);
    const auto labels =
        (radius > 0.4).logical_and(radius < 0.8).to(torch::kLong);
    optimizer.zero_grad();
    const auto result = replica->train_step(
        points.to(replica->device()), labels.to(replica->device()),
        [](const torch::Tensor& output, const torch::Tensor& target) {
          return torch::nn::functional::cross_entropy(output, target);
        },
        whole_batch);
    optimizer.step();
    if (world->rank() == 0 && step % 20 == 0) {
      std::cout << "step " << step << ", loss " << result.loss.item<float>()
                << "\n";
    }
  }
}
