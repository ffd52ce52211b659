// Trains a small network through a pipeline of two partitions.
//
//   ./bazelw run //examples:train_mlp
#include <torch/torch.h>

#include <iostream>

#include "balancing/balancing.h"
#include "gpipe/gpipe.h"

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential model;
  for (int k = 0; k < 6; ++k) {
    model->push_back(torch::nn::Linear(k == 0 ? 2 : 256, 256));
    model->push_back(torch::nn::ReLU());
  }
  model->push_back(torch::nn::Linear(256, 2));

  // The task: is a point inside a ring?
  const auto points = torch::rand({1024, 2}) * 2 - 1;
  const auto radius = points.norm(2, /*dim=*/1);
  const auto labels = (radius > 0.4).logical_and(radius < 0.8).to(torch::kLong);

  // Partitions the layers by their measured times and builds the pipeline.
  const auto balance = gpipe::balancing::balance_by_time(2, model, points);
  gpipe::GPipe pipeline(model, gpipe::GPipeOptions(balance).chunks(8));
  const auto input = points.to(pipeline->devices().front());
  const auto target = labels.to(pipeline->devices().back());

  // The rest is plain LibTorch.
  torch::optim::Adam optimizer(pipeline->parameters(), /*lr=*/1e-3);
  for (int step = 1; step <= 60; ++step) {
    optimizer.zero_grad();
    const auto loss =
        torch::nn::functional::cross_entropy(pipeline->forward(input), target);
    loss.backward();
    optimizer.step();
    if (step % 20 == 0) {
      std::cout << "step " << step << ", loss " << loss.item<float>() << "\n";
    }
  }
}
