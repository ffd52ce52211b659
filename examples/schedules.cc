// Trains a small network by a schedule of one's choice, and draws a step: what
// the simulator says of it, and what was measured.
//
//   ./bazelw run //examples:schedules -- zb-h1
#include <torch/torch.h>

#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

namespace {

constexpr int kRanks = 2, kMicrobatches = 8;

torch::nn::Sequential network() {
  torch::nn::Sequential model;
  for (int k = 0; k < 16; ++k) {
    model->push_back(torch::nn::Linear(k == 0 ? 2 : 512, 512));
    model->push_back(torch::nn::ReLU());
  }
  model->push_back(torch::nn::Linear(512, 2));
  return model;
}

void train(const std::string& name) {
  torch::manual_seed(0);
  const int stages_per_rank = gpipe::fixed_stages_per_rank(name).value_or(2);
  const gpipe::Schedule schedule =
      gpipe::named_schedule(name, kRanks, kMicrobatches, stages_per_rank);
  const int stages = kRanks * stages_per_rank;

  torch::nn::Sequential model = network();
  std::vector<int64_t> balance(stages, 32 / stages);
  ++balance.back();
  gpipe::GPipe pipeline(model, gpipe::GPipeOptions(balance)
                                   .stages_per_rank(stages_per_rank)
                                   .devices({torch::kCPU, torch::kCPU})
                                   .checkpoint(gpipe::Checkpoint::kNever));

  // Is a point inside of a ring?
  const auto points = torch::rand({2048, 2}) * 2 - 1;
  const auto radius = points.norm(2, /*dim=*/1);
  const auto labels = (radius > 0.4).logical_and(radius < 0.8).to(torch::kLong);
  torch::optim::Adam optimizer(pipeline->parameters(), /*lr=*/1e-3);
  gpipe::StepResult result;
  for (int step = 1; step <= 10; ++step) {
    optimizer.zero_grad();
    result = pipeline->train_step(
        points, labels,
        [](const torch::Tensor& output, const torch::Tensor& target) {
          return torch::nn::functional::cross_entropy(output, target);
        },
        schedule, gpipe::TrainOptions().timeline(true));
    optimizer.step();
    std::cout << "step " << step << ", loss " << result.loss.item<float>()
              << "\n";
  }
  std::cout << "measured:\n" << gpipe::to_text(*result.timeline);

  // As if all stages took as long: backwards twice a forward.
  gpipe::Costs costs;
  costs.forward.assign(stages, 1);
  costs.backward_input = costs.backward_weight = costs.forward;
  costs.backward.assign(stages, 2);
  std::cout << "simulated:\n"
            << gpipe::to_text(gpipe::simulate(schedule, costs));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    train(argc > 1 ? argv[1] : "1f1b");
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
