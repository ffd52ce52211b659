// A comparison of a pipeline of processes with a pipeline of threads. Each rank
// trains its part, and beside it the whole model in a GPipe.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/testing/models.h"

namespace gpipe::testing {

// Returns the layers of `subject`, with the same bits in each call.
torch::nn::Sequential make(const Subject& subject);

// Returns options for partitions on the CPU that have one thread each.
inline DistributedOptions on_cpu(std::vector<int64_t> balance) {
  return DistributedOptions(std::move(balance)).device(torch::kCPU).threads(1);
}
// The same for a pipeline of `ranks` devices in one process.
inline GPipeOptions on_cpu(std::vector<int64_t> balance, int64_t ranks) {
  return GPipeOptions(std::move(balance))
      .devices(std::vector<torch::Device>(ranks, torch::kCPU))
      .threads_per_partition(1);
}

// Returns an optimizer for the parameters of `module`.
template <typename Module>
torch::optim::SGD optimizer_of(Module& module) {
  return torch::optim::SGD(module->parameters(),
                           torch::optim::SGDOptions(0.1).momentum(0.9));
}

// The schedule and the options of a training.
struct Setting {
  Schedule schedule;
  int stages_per_rank = 1;
  Checkpoint mode = Checkpoint::kExceptLast;
  bool deferred = false, fixed_order = false, built = false;
  torch::Device device = torch::kCPU;  // of this rank
  Transfers transfers = Transfers::kHost;
};

// Trains for `steps` steps; all ranks of the world call it. The sizes of the
// mini-batches change from time to time. Throws unless losses, outputs,
// gradients, parameters, buffers, the clipped norm and the state of LibTorch's
// generator have the same bits as in one process on the CPU.
// `where`: the beginning of the error text.
void train(const std::shared_ptr<World>& world, const Subject& subject,
           const Setting& setting, int steps, const std::string& where);

// Throws unless parameters, gradients and buffers of `part` have the bits of
// those of `whole` with the same names. `where`: the beginning of the error
// text.
void check_same_state(const torch::nn::Module& part,
                      const torch::nn::Module& whole, const std::string& where);

// Returns every schedule for `ranks` ranks that has at most `most_stages`
// stages, for each number in `microbatches` that the schedule accepts, with a
// name. Every second one offloads all cells and recomputes none.
std::vector<std::pair<std::string, Setting>> settings(
    int ranks, int most_stages, const std::vector<int>& microbatches);

}  // namespace gpipe::testing
