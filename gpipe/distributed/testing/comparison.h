// A pipeline of processes beside one of threads: each rank trains its part, and
// the whole model in a pipeline of its own beside it, and compares.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "gpipe/runtime/checkpoint.h"
#include "gpipe/schedule.h"

namespace gpipe::testing {

// std::runtime_error with this text.
void check(bool holds, const std::string& what);

struct Subject {
  std::function<torch::nn::Sequential()> make;
  std::vector<int64_t> input, target;  // sizes without the rows
};

// Its layers, of the same bits each time.
torch::nn::Sequential make(const Subject& subject);

std::vector<int64_t> with_rows(int64_t rows, std::vector<int64_t> sizes);

template <typename Module>
torch::optim::SGD optimizer_of(Module& module) {
  return torch::optim::SGD(module->parameters(),
                           torch::optim::SGDOptions(0.1).momentum(0.9));
}

struct Setting {
  Schedule schedule;
  int stages_per_rank = 1;
  Checkpoint mode = Checkpoint::kExceptLast;
  bool deferred = false, fixed_order = false, built = false;
  torch::Device device = torch::kCPU;  // of this rank
  Transfers transfers = Transfers::kHost;
};

// In a rank, as all others: so many steps, of mini-batches whose sizes change
// from time to time. Throws unless losses, outputs, gradients, parameters,
// buffers, the clipped norm and LibTorch's generator have the bits of one
// process on the CPU; `where` is for what it throws.
void train(const std::shared_ptr<World>& world, const Subject& subject,
           const Setting& setting, int steps, const std::string& where);

// Every schedule that has this number of ranks and up to so many stages, with
// each of these numbers of micro-batches that it has, and its name.
std::vector<std::pair<std::string, Setting>> settings(
    int ranks, int most_stages, const std::vector<int>& microbatches);

}  // namespace gpipe::testing
