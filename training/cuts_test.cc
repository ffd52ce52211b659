// Tests that a run which resumes with another partitioning, or with another
// number of processes, is bitwise equal to an uninterrupted run.
#include <ATen/Context.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "models/testing/files.h"
#include "models/weights/state_dict.h"
#include "training/learning_rate.h"
#include "training/run_files.h"
#include "training/testing/run_states.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::argument;
using testing::expect_equal;
using testing::new_folder;
using testing::RankProgramEntry;
using testing::RankResult;
using testing::Ranks;
using testing::world_options;

constexpr int64_t kChunks = 4;

// Returns a model whose initial weights depend on whether the run has started.
// So a tensor that is missing in the state makes a resumed run differ.
nn::Sequential make_model(const std::string& folder) {
  at::manual_seed(RunFiles(folder).steps().empty() ? 1 : 2);
  return nn::Sequential(nn::Linear(6, 16), nn::BatchNorm1d(16),
                        nn::Dropout(0.3), nn::Linear(16, 16), nn::Tanh(),
                        nn::Dropout(0.2), nn::Linear(16, 4), nn::Linear(4, 2));
}

std::vector<int64_t> balance_of(int64_t partitions) {
  return std::vector<int64_t>(partitions, 8 / partitions);
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

// A training program. All that it gets from an earlier process is the state in
// the run's folder.
template <typename Pipeline>
class Trainer {
 public:
  Trainer(Pipeline pipeline, const std::string& folder, const RunShard& shard)
      : pipeline_(std::move(pipeline)),
        optimizer_(pipeline_->parameters(), torch::optim::AdamWOptions(0.05)),
        rates_(LearningRateSchedule("warmup:2,linear:20"), optimizer_),
        files_(folder, RunFilesOptions().shard(shard)) {
    const auto keys = state_dict(*pipeline_).keys();
    const auto state =
        files_.resume("auto", RunFiles::Names(keys.begin(), keys.end()));
    if (!state) return;
    load_state_dict(*pipeline_, state->model);
    load_optimizer_state(optimizer_, *state->optimizer,
                         pipeline_->named_parameters());
    set_generator_states(state->generators);
    step_ = state->step;
  }

  // Trains up to step `last` and saves the state.
  void train(int64_t last, const Schedule& schedule) {
    for (; step_ < last; ++step_) {
      rates_.set(optimizer_, step_);
      // Equal on all ranks, since their generators have equal states.
      const at::Tensor input = at::randn({12, 6}), target = at::randn({12, 2});
      optimizer_.zero_grad();
      pipeline_->train_step(input, target, loss_of, schedule);
      optimizer_.step();
    }
    RunState state;
    state.step = step_;
    state.model = state_dict(*pipeline_);
    state.optimizer =
        optimizer_state(optimizer_, pipeline_->named_parameters());
    state.generators = generator_states();
    files_.save(state);
  }

 private:
  Pipeline pipeline_;
  torch::optim::AdamW optimizer_;
  LearningRates rates_;
  RunFiles files_;
  int64_t step_ = 0;
};

// Resumes and trains to step `last` in this process.
void train_here(const std::string& folder, int64_t partitions, int64_t last) {
  GPipe pipeline(make_model(folder),
                 GPipeOptions(balance_of(partitions))
                     .devices(std::vector<torch::Device>(partitions, at::kCPU))
                     .chunks(kChunks)
                     .threads_per_partition(1));
  Trainer<GPipe>(pipeline, folder, {})
      .train(last, fill_drain(static_cast<int>(partitions), kChunks));
}

// Resumes and trains to step `last` with one process per partition.
const RankProgramEntry kTrain("train", [] {
  const auto world = World::connect(world_options());
  const RunShard shard{world->rank(), world->size(),
                       [&](const std::string& mine) {
                         return all_gather(*world, mine, "a saved step");
                       }};
  const int64_t last = std::stoll(argument("last"));
  DistributedPipeline pipeline(make_model(argument("folder")),
                               DistributedOptions(balance_of(world->size()))
                                   .device(torch::Device(at::kCPU))
                                   .threads_per_partition(1),
                               world);
  Trainer<DistributedPipeline>(pipeline, argument("folder"), shard)
      .train(last, fill_drain(world->size(), kChunks));
  return 0;
});

void train_in_processes(const std::string& folder, int count, int64_t last) {
  Ranks ranks("train", count,
              {{"folder", folder}, {"last", std::to_string(last)}});
  for (const RankResult& each : ranks.wait()) {
    EXPECT_TRUE(each.exit.ok()) << each.err;
  }
}

RunState state_of(const std::string& folder) {
  return RunFiles(folder).load_latest().value();
}

RunState undisturbed() {
  const std::string folder = new_folder();
  train_here(folder, 1, 8);
  return state_of(folder);
}

TEST(CutsTest, AnotherCutGoesOnWithTheSameBits) {
  const RunState expected = undisturbed();
  const std::string cut = new_folder();
  train_here(cut, 4, 2);
  train_here(cut, 2, 4);
  train_here(cut, 1, 6);
  train_here(cut, 4, 8);
  expect_equal(state_of(cut), expected);
}

TEST(CutsTest, AnotherNumberOfProcessesGoesOnWithTheSameBits) {
  const RunState expected = undisturbed();
  const std::string cut = new_folder();
  train_here(cut, 2, 2);
  train_in_processes(cut, 4, 4);
  train_in_processes(cut, 2, 6);
  train_in_processes(cut, 4, 7);
  train_here(cut, 1, 8);
  expect_equal(state_of(cut), expected);
}

}  // namespace
}  // namespace gpipe
