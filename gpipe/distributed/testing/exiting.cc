// A program that exits while pipelines and Worlds live.
//
//   exiting WAY STATUS
//
// It is one rank if RANK is set. It exits with STATUS, in a way of `kWays`.
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"

namespace {

using gpipe::DistributedPipeline;
using gpipe::GPipe;
using gpipe::World;
using torch::Tensor;
namespace nn = torch::nn;

int status = 0;

// A static object that is destroyed after those that LibTorch makes when they
// are first used. Meanwhile, the other threads go on for a long time.
struct Slow {
  ~Slow() { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }
} slow;

std::shared_ptr<World> global_world;

[[noreturn]] void exit_now() {
  std::cout << "exits" << std::endl;
  std::cout << "unflushed";
  std::exit(status);
}

std::shared_ptr<World> connect() {
  gpipe::WorldOptions options;
  if (std::getenv("RANK")) {
    options = gpipe::WorldOptions::from_environment();
    options.heartbeat_timeout = std::chrono::seconds(20);
  } else {
    options.rank = 0;
    options.size = 1;
    options.address = "127.0.0.1";
    options.port = 29500;  // a world of one rank listens nowhere
    // There is no other rank, so a heartbeat each ms disturbs none.
    options.heartbeat_timeout = std::chrono::milliseconds(8);
  }
  return World::connect(options);
}

nn::Sequential model() {
  return nn::Sequential(nn::Linear(64, 64), nn::Linear(64, 64));
}

// Trains until the process ends. `before_loss`: called by the loss of the
// `step`-th step.
template <typename Pipeline>
void train(Pipeline pipeline, const std::function<void(int step)>& before_loss,
           int microbatches = 2) {
  const auto schedule = gpipe::one_forward_one_backward(2, microbatches);
  const Tensor x = torch::ones({8, 64});
  for (int step = 0;; ++step) {
    pipeline->train_step(
        x, x,
        [&](Tensor output, Tensor target) {
          before_loss(step);
          return (output - target).square().mean();
        },
        schedule);
  }
}

GPipe threads() {
  return GPipe(model(), gpipe::GPipeOptions({1, 1}).chunks(2).devices(
                            {torch::kCPU, torch::kCPU}));
}

DistributedPipeline processes() {
  return DistributedPipeline(model(), gpipe::DistributedOptions({1, 1}),
                             connect());
}

void train_once(DistributedPipeline& pipeline) {
  const Tensor x = torch::ones({8, 64});
  pipeline->train_step(
      x, x,
      [](Tensor output, Tensor target) {
        return (output - target).square().mean();
      },
      gpipe::one_forward_one_backward(2, 2));
}

void exit_in_second(int step) {
  if (step == 1) exit_now();
}

// Exits on another thread while this one trains.
template <typename Pipeline>
[[noreturn]] void exit_beside(Pipeline pipeline) {
  std::promise<void> begun;
  std::thread([begun = begun.get_future()]() mutable {
    begun.wait();
    exit_now();
  }).detach();
  train(pipeline, [&](int step) {
    static bool once = false;
    if (step == 1 && !std::exchange(once, true)) begun.set_value();
  });
  std::abort();
}

const std::map<std::string, std::function<void()>> kWays = {
    {"local_world",
     [] {
       const auto world = connect();
       exit_now();
     }},
    {"leaked_world", [] { new std::shared_ptr<World>(connect()); }},
    {"static_world",
     [] {
       static const auto world = connect();
       exit_now();
     }},
    {"global_world",
     [] {
       global_world = connect();
       exit_now();
     }},
    {"leaked_gpipe",
     [] {
       auto* const pipeline = new GPipe(threads());
       (*pipeline)->forward(torch::ones({8, 64}));
     }},
    {"new_gpipe", [] { new GPipe(threads()); }},
    {"static_gpipe",
     [] {
       static GPipe pipeline = threads();
       pipeline->forward(torch::ones({8, 64})).sum().backward();
       exit_now();
     }},
    {"loss_of_gpipe", [] { train(threads(), exit_in_second); }},
    {"loss_of_static_gpipe",
     [] {
       static GPipe pipeline = threads();
       train<GPipe&>(pipeline, exit_in_second);
     }},
    {"hook_of_static_gpipe",
     [] {
       static GPipe pipeline = threads();
       Tensor output = pipeline->forward(torch::ones({8, 64}));
       pipeline->parameters()[0].register_hook([](Tensor) { exit_now(); });
       output.sum().backward();
     }},
    {"beside_gpipe", [] { exit_beside(threads()); }},
    {"beside_static_gpipe",
     [] {
       static GPipe pipeline = threads();
       exit_beside<GPipe&>(pipeline);
     }},
    {"fork_with_static_gpipe",
     [] {
       static GPipe pipeline = threads();
       pipeline->forward(torch::ones({8, 64}));
       if (::fork() == 0) exit_now();
       exit_now();
     }},
    // These need two ranks. The loss is computed by rank 1.
    {"loss_of_distributed", [] { train(processes(), exit_in_second); }},
    {"loss_of_static_distributed",
     [] {
       static DistributedPipeline pipeline = processes();
       train<DistributedPipeline&>(pipeline, exit_in_second);
     }},
    {"static_distributed",
     [] {
       static DistributedPipeline pipeline = processes();
       train_once(pipeline);
       exit_now();
     }},
    {"sends_of_static_distributed",
     [] {
       static DistributedPipeline pipeline = processes();
       const torch::NoGradGuard no_grad;
       pipeline->forward(torch::ones({1 << 16, 64}));
       exit_now();  // of rank 0, while its worker may still send
     }},
    {"leaked_distributed",
     [] {
       auto* const pipeline = new DistributedPipeline(processes());
       train_once(*pipeline);
     }},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || kWays.count(argv[1]) == 0) return 99;
  status = std::atoi(argv[2]);
  torch::set_num_threads(1);
  try {
    kWays.at(argv[1])();
  } catch (const gpipe::PeerError& error) {
    // The text of an exception of rank 0 that rank 1 has caused.
    std::cout << "fault " << to_string(error.failure().fault) << std::endl;
    std::exit(status);
  }
  return status;
}
