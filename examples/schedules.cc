// Trains a small network with a given schedule. Prints one step as a timeline,
// measured and simulated.
//
//   ./bazelw run //examples:schedules -- zb-h1
//
// or with each of the two ranks in a process (see docs/distributed.md):
//
//   launch --nproc=2 -- schedules zb-h1 --distributed
#include <torch/torch.h>

#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/world.h"
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

// Trains for five steps and returns the last step's timeline. `device`: where
// the input goes. `speaks`: whether this process prints the losses.
template <typename Pipeline>
gpipe::Timeline train(Pipeline& pipeline, torch::Device device,
                      const gpipe::Schedule& schedule, bool speaks) {
  // The task: is a point inside a ring?
  const auto points = torch::rand({2048, 2}) * 2 - 1;
  const auto radius = points.norm(2, /*dim=*/1);
  const auto labels = (radius > 0.4).logical_and(radius < 0.8).to(torch::kLong);
  torch::optim::Adam optimizer(pipeline->parameters(), /*lr=*/1e-3);
  gpipe::StepResult result;
  for (int step = 1; step <= 5; ++step) {
    optimizer.zero_grad();
    result = pipeline->train_step(
        points.to(device), labels.to(device),
        [](const torch::Tensor& output, const torch::Tensor& target) {
          return torch::nn::functional::cross_entropy(output, target);
        },
        schedule, gpipe::TrainOptions().timeline(true));
    optimizer.step();
    if (speaks) {
      std::cout << "step " << step << ", loss " << result.loss.item<float>()
                << std::endl;
    }
  }
  return *result.timeline;
}

void run(const std::string& name, bool distributed) {
  torch::manual_seed(0);
  const int stages_per_rank = gpipe::fixed_stages_per_rank(name).value_or(2);
  const gpipe::Schedule schedule =
      gpipe::named_schedule(name, kRanks, kMicrobatches, stages_per_rank);
  const int stages = kRanks * stages_per_rank;
  // Finds the placement of stages on ranks: kLoop is 0, 1, 0, 1 and kV is
  // 0, 1, 1, 0.
  const std::vector<int> ranks = gpipe::rank_of_stage(schedule);
  const auto placement = stages > kRanks && ranks.back() == 0
                             ? gpipe::Placement::kV
                             : gpipe::Placement::kLoop;

  torch::nn::Sequential model = network();
  std::vector<int64_t> balance(stages, 32 / stages);
  ++balance.back();
  gpipe::Timeline measured;
  bool speaks = true;
  if (distributed) {
    const auto world =
        gpipe::World::connect(gpipe::WorldOptions::from_environment());
    gpipe::DistributedPipeline pipeline(
        model,
        gpipe::DistributedOptions(balance)
            .stages_per_rank(stages_per_rank)
            .placement(placement)
            .checkpoint(gpipe::Checkpoint::kNever),
        world);
    speaks = world->rank() == 0;
    measured = train(pipeline, pipeline->device(), schedule, speaks);
  } else {
    gpipe::GPipe pipeline(model, gpipe::GPipeOptions(balance)
                                     .stages_per_rank(stages_per_rank)
                                     .placement(placement)
                                     .devices({torch::kCPU, torch::kCPU})
                                     .checkpoint(gpipe::Checkpoint::kNever));
    measured = train(pipeline, pipeline->devices().front(), schedule, speaks);
  }
  // With several processes, each measures itself.
  std::cout << "measured:\n" << gpipe::to_text(measured) << std::flush;
  if (!speaks) return;

  // Simulates stages of equal length, with backward twice as long as forward.
  gpipe::Costs costs;
  costs.forward.assign(stages, 1);
  costs.backward_input = costs.backward_weight = costs.forward;
  costs.backward.assign(stages, 2);
  std::cout << "simulated:\n"
            << gpipe::to_text(gpipe::simulate(schedule, costs));
}

}  // namespace

int main(int argc, char** argv) {
  std::string name = "1f1b";
  bool distributed = false;
  for (const std::string argument : std::vector(argv + 1, argv + argc)) {
    if (argument == "--distributed") {
      distributed = true;
    } else {
      name = argument;
    }
  }
  try {
    run(name, distributed);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
