#include "tools/gpu/gpu_ranks.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>
#include <vector>

#include "gpipe/distributed/error.h"
#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "tools/gpu/gpu_steps.h"

namespace gpipe::tools {
namespace {

constexpr int64_t kWidth = 256, kChunks = 4;

// An identity that ends the process in its first forward.
struct DyingLayerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    std::raise(SIGKILL);
    return input;
  }
};
TORCH_MODULE(DyingLayer);

// Returns three layers per rank, and one more at the end that ends the last
// rank if `dies`, and else does nothing.
torch::nn::Sequential layers_of(int ranks, bool dies) {
  torch::manual_seed(0);
  torch::nn::Sequential layers = wide_layers(ranks, kWidth);
  if (dies) layers->push_back(DyingLayer());
  return layers;
}

std::vector<int64_t> balance_of(int ranks, bool dies) {
  std::vector<int64_t> balance(static_cast<std::size_t>(ranks), 3);
  if (dies) ++balance.back();
  return balance;
}

// The pipeline over all ranks, and GPipe with all layers on this rank's device.
class Comparison {
 public:
  Comparison(const std::shared_ptr<World>& world, Transfers transfers,
             bool dies)
      : ranks_(world->size()),
        pipeline_(layers_of(ranks_, dies),
                  DistributedOptions(balance_of(ranks_, dies))
                      .transfers(transfers)
                      .threads_per_partition(1),
                  world),
        alone_(layers_of(ranks_, /*dies=*/false),
               GPipeOptions(balance_of(ranks_, /*dies=*/false))
                   .devices(std::vector<torch::Device>(
                       static_cast<std::size_t>(ranks_), pipeline_->device()))
                   .threads_per_partition(1)) {}

  // Runs a step of both. Returns whether the loss and the gradients of this
  // rank's parameters have equal bits.
  bool step(int64_t rows, int64_t seed) {
    const auto schedule = one_forward_one_backward(ranks_, kChunks);
    torch::manual_seed(static_cast<uint64_t>(seed));
    const auto input = torch::rand({rows, 1}), target = torch::rand({rows, 1});
    pipeline_->zero_grad();
    alone_->zero_grad();
    const auto found =
        pipeline_->train_step(input, target, squared_error, schedule);
    const auto expected =
        alone_->train_step(input.to(device()), target, squared_error, schedule);
    bool equal = found.loss.cpu().equal(expected.loss.cpu());
    const auto parameters = alone_->named_parameters();
    for (const auto& item : pipeline_->named_parameters()) {
      const at::Tensor* const other = parameters.find(item.key());
      equal = equal && other && item.value().grad().equal(other->grad());
    }
    return equal;
  }

  const torch::Device& device() const { return pipeline_->device(); }

  // Returns the transport of the pipeline and why.
  std::string transport() const {
    return std::string("transfers: ") + to_string(pipeline_->transfers()) +
           ", " + pipeline_->transfers_reason();
  }

 private:
  int ranks_;
  DistributedPipeline pipeline_;
  GPipe alone_;
};

// Steps of two shapes, so that predicted shapes are wrong once.
CheckResult run_steps(Comparison& comparison) {
  constexpr int64_t kSteps = 10, kMoreSteps = 5;
  for (int64_t step = 1; step <= kSteps + kMoreSteps; ++step) {
    const int64_t rows = kChunks * (step <= kSteps ? 32 : 48);
    if (comparison.step(rows, step)) continue;
    std::ostringstream text;
    text << "step " << step << " of " << rows
         << " rows: the loss or a gradient differs from one process";
    return {CheckOutcome::kFailed, text.str()};
  }
  return {CheckOutcome::kPassed,
          "10 steps and 5 of another shape have the bits of one process"};
}

CheckResult run_all(const std::shared_ptr<World>& world,
                    const RankCheckOptions& options) {
  const bool dies = world->rank() == world->size() - 1;
  if (dies && options.die_at == "connected") std::raise(SIGKILL);
  Comparison comparison(world, options.transfers, options.die_at == "forward");
  if (world->rank() == 0) std::cout << comparison.transport() << std::endl;
  if (dies && options.die_at == "built") std::raise(SIGKILL);
  CheckResult result = run_steps(comparison);
  if (options.at_end.empty()) return result;
  std::ostringstream line;
  line << "process " << getpid() << " uses " << comparison.device();
  const auto lines = all_gather(*world, line.str(), "the command at the end");
  if (world->rank() == 0) {
    for (const auto& each : lines) std::cout << each << "\n";
    std::cout << std::flush;
    const int status = std::system(options.at_end.c_str());
    if (status != 0) {
      std::ostringstream text;
      text << "'" << options.at_end << "' ended with status " << status;
      result = {CheckOutcome::kFailed, text.str()};
    }
  }
  // The other processes keep their devices until the command has ended.
  all_gather(*world, "", "the end of the command");
  return result;
}

}  // namespace

CheckResult check_ranks(const WorldOptions& world,
                        const RankCheckOptions& options) {
  static const std::set<std::string> places{"", "connected", "built",
                                            "forward"};
  TORCH_CHECK_VALUE(places.count(options.die_at) > 0, "there is no place '",
                    options.die_at,
                    "' to die at: use connected, built or forward");
  TORCH_CHECK_VALUE(world.size >= 2,
                    "the check of ranks needs at least 2 "
                    "processes, but the world has ",
                    world.size, ": start it with the launcher and --nproc=2");
  if (options.die_at.empty()) return run_all(World::connect(world), options);
  try {
    run_all(World::connect(world), options);
  } catch (const PeerError& error) {
    const bool named = error.failure().rank == world.size - 1;
    return {named ? CheckOutcome::kPassed : CheckOutcome::kFailed,
            "told of the end of rank " + std::to_string(world.size - 1) + ": " +
                error.failure().to_string()};
  }
  return {CheckOutcome::kFailed,
          "the steps ended without an error, although "
          "the last rank should have died"};
}

}  // namespace gpipe::tools
