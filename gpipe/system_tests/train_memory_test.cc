// Tests how many micro-batches each schedule holds, measured in bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/base/instruments.h"
#include "gpipe/gpipe.h"
#include "gpipe/libtorch/meta_ledger.h"
#include "gpipe/meta.h"
#include "gpipe/recomputed.h"
#include "gpipe/schedule.h"

namespace gpipe {
namespace {

using instruments::CountingAllocator;
using torch::Tensor;
namespace nn = torch::nn;

// A micro-batch of this layer keeps kBatch x kColumns numbers for its backward
// until its weight's gradient has been computed. All other tensors are small.
constexpr int64_t kBatch = 2048, kColumns = 64;
constexpr double kKept = kBatch * kColumns * sizeof(double);

struct LargeImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    return product(x.expand({x.size(0), kColumns}).exp());
  }
  nn::Linear product = register_module(
      "product", nn::Linear(nn::LinearOptions(kColumns, 1).bias(false)));
};
TORCH_MODULE(Large);

Tensor mean_of_output(const Tensor& output, const Tensor&) {
  return output.mean();
}

// Returns how many bytes are added at the peak of a step. An earlier step makes
// the allocations that stay.
double peak_bytes(GPipe& pipeline, const Tensor& input,
                  const Schedule& schedule) {
  int64_t before = 0;
  for (int step = 0; step < 2; ++step) {
    pipeline->zero_grad();
    before = CountingAllocator::live_bytes();
    CountingAllocator::reset_peak();
    pipeline->train_step(input, input, mean_of_output, schedule);
  }
  return static_cast<double>(CountingAllocator::peak_bytes() - before);
}

// Returns the memory at the peak of a step, in units of what a micro-batch
// keeps on `stage`. Other stages keep almost nothing.
double held(const Schedule& schedule, int stage) {
  const int stages = num_stages(schedule);
  nn::Sequential layers;
  for (int s = 0; s < stages; ++s) {
    if (s == stage) {
      layers->push_back(Large());
    } else {
      layers->push_back(nn::Linear(1, 1));
    }
  }
  layers->to(torch::kDouble);
  GPipe pipeline(
      layers,
      GPipeOptions(std::vector<int64_t>(stages, 1))
          .stages_per_rank(stages / static_cast<int>(schedule.ranks.size()))
          .checkpoint(Checkpoint::kNever));
  const Tensor input =
      torch::rand({num_microbatches(schedule) * kBatch, 1}, torch::kDouble);
  return peak_bytes(pipeline, input, schedule) / kKept;
}

// Returns the temporary tensors in a stage's backward, in the same unit. On the
// way to the input's gradient it makes the gradient of the kept tensor twice.
// The first stage computes no gradient of its input.
int on_the_way(int stage) { return stage == 0 ? 0 : 2; }

// Expects that a stage holds `microbatches` micro-batches and its temporary
// tensors at the peak. All other tensors must take less than 0.9 of a
// micro-batch.
void expect_held(const Schedule& schedule, int stage, int microbatches,
                 const std::string& name) {
  const double found = held(schedule, stage);
  EXPECT_GE(found, microbatches + on_the_way(stage))
      << name << ", stage " << stage;
  EXPECT_LT(found, microbatches + on_the_way(stage) + 0.9)
      << name << ", stage " << stage;
}

class TrainMemory : public ::testing::Test {
 protected:
  TrainMemory() {
    instruments::CountingAllocator::install();
    torch::set_num_threads(1);
  }
};

constexpr int kRanks = 4, kParts = 16;

TEST_F(TrainMemory, FillDrainHoldsAllMicrobatches) {
  const Schedule schedule = fill_drain(kRanks, kParts);
  for (int r = 0; r < kRanks; ++r) {
    expect_held(schedule, r, kParts, "fill-drain");
  }
}

TEST_F(TrainMemory, OneForwardOneBackwardHoldsOnePerStageThatFollows) {
  const Schedule schedule = one_forward_one_backward(kRanks, kParts);
  for (int r = 0; r < kRanks; ++r) {
    expect_held(schedule, r, kRanks - r, "1f1b");
  }
  expect_held(one_forward_one_backward(kRanks, 2), 0, 2, "1f1b of 2");
}

TEST_F(TrainMemory, ZeroBubbleHoldsUntilTheWeightsGradient) {
  const Schedule h1 = zero_bubble_h1(kRanks, kParts);
  const Schedule h2 = zero_bubble_h2(kRanks, kParts);
  for (int r = 0; r < kRanks; ++r) {
    expect_held(h1, r, kRanks, "zb-h1");
    expect_held(h2, r, 2 * kRanks - 1, "zb-h2");
  }
}

TEST_F(TrainMemory, ACheckpointedMicrobatchHoldsItsInputOnly) {
  const auto all = [](int) { return true; };
  const Schedule schedule = with_recompute(fill_drain(kRanks, kParts), all);
  for (int r = 0; r < kRanks; ++r) {
    expect_held(schedule, r, 1, "fill-drain, recomputed");
  }
}

// With several stages per rank, the simulator counts the micro-batches of all
// stages of a rank; this counts those of one stage.
int peak_of_stage(const Schedule& schedule, int stage) {
  int now = 0, peak = 0;
  for (const auto& rank : schedule.ranks) {
    const bool split =
        std::any_of(rank.begin(), rank.end(), [](const Action& action) {
          return action.kind == ActionKind::kBackwardWeight;
        });
    for (const Action& action : rank) {
      if (action.stage != stage) continue;
      if (action.kind == ActionKind::kForward) peak = std::max(peak, ++now);
      const ActionKind last =
          split ? ActionKind::kBackwardWeight : ActionKind::kBackward;
      if (action.kind == last) --now;
    }
  }
  return peak;
}

TEST_F(TrainMemory, SeveralStagesPerRankHoldWhatTheirOrderSays) {
  for (const char* name :
       {"interleaved-1f1b", "looped-bfs", "zb-interleaved", "zbv", "v-half"}) {
    const Schedule schedule = named_schedule(name, 2, 6, 2);
    for (int s = 0; s < 4; ++s) {
      expect_held(schedule, s, peak_of_stage(schedule, s), name);
    }
  }
}

// A weight's gradient is added to the sum as soon as it is computed.
TEST_F(TrainMemory, GradientsOfAStageAreNotHeldBesideEachOther) {
  constexpr int64_t kSide = 256, kLayers = 8;
  constexpr double kWeight = kSide * kSide * sizeof(double);
  for (const bool split : {false, true}) {
    nn::Sequential layers;
    for (int64_t k = 0; k < kLayers; ++k) {
      layers->push_back(
          nn::Linear(nn::LinearOptions(kSide, kSide).bias(false)));
    }
    layers->to(torch::kDouble);
    GPipe pipeline(layers, GPipeOptions({kLayers})
                               .checkpoint(Checkpoint::kNever)
                               .threads_per_partition(1));
    const Tensor input = torch::rand({2, kSide}, torch::kDouble);
    const auto schedule =
        split ? zero_bubble_h1(1, 2) : one_forward_one_backward(1, 2);
    const double held = peak_bytes(pipeline, input, schedule) / kWeight;
    EXPECT_GE(held, kLayers + 1) << split;  // the sums and one new gradient
    EXPECT_LT(held, kLayers + 1.5) << split;
  }
}

// ---- Tests the peak memory of a partition whose layers are recomputed.

using torch::nn::Sequential;

constexpr int64_t kBlocks = 24, kBlockRows = 512, kWidth = 32,
                  kMicrobatches = 2;
// The bytes of the input of a layer of one micro-batch.
constexpr int64_t kInput = kBlockRows * kWidth * sizeof(float);

// Keeps kSteps tensors of the size of its input for its backward.
constexpr int64_t kSteps = 8;
struct BlockImpl : torch::nn::Module {
  Tensor forward(Tensor x) {
    ++calls;
    x = x * weight;
    for (int64_t k = 0; k < kSteps; ++k) x = x.mul(0.9).sin();
    return x;
  }
  int64_t calls = 0;
  Tensor weight = register_parameter("weight", torch::ones({1}));
};
TORCH_MODULE(Block);

Sequential blocks(int64_t count, bool recomputed) {
  Sequential model;
  for (int64_t k = 0; k < count; ++k) {
    if (recomputed) {
      model->push_back(Recomputed(Block()));
    } else {
      model->push_back(Block());
    }
  }
  return model;
}

GPipe pipeline(const c10::Device& device, int64_t count, bool recomputed,
               int64_t microbatches) {
  return GPipe(blocks(count, recomputed), GPipeOptions({count})
                                              .devices({device})
                                              .chunks(microbatches)
                                              .checkpoint(Checkpoint::kAlways)
                                              .threads_per_partition(1));
}

void train_once(GPipe& pipeline, const Tensor& input) {
  pipeline->zero_grad();
  pipeline->forward(input).sum().backward();
}

// Returns the bytes at the peak of a step, without those from before it.
int64_t peak_on_cpu(int64_t count, bool recomputed, int64_t microbatches) {
  CountingAllocator::install();
  GPipe model = pipeline(torch::kCPU, count, recomputed, microbatches);
  const Tensor input = torch::ones({microbatches * kBlockRows, kWidth});
  train_once(model, input);  // makes the allocations that stay
  const int64_t before = CountingAllocator::live_bytes();
  CountingAllocator::reset_peak();
  train_once(model, input);
  return CountingAllocator::peak_bytes() - before;
}

int64_t peak_on_meta(int64_t count, bool recomputed, int64_t microbatches) {
  GPipe model = [&] {
    const MetaGuard meta;
    return pipeline(torch::Device(torch::kMeta), count, recomputed,
                    microbatches);
  }();
  const Tensor input =
      torch::empty({microbatches * kBlockRows, kWidth}, torch::kMeta);
  train_once(model, input);
  const MetaLedger ledger;
  train_once(model, input);
  return ledger.peak_bytes();
}

// Tests that the partition holds, at its peak, the outputs of the mini-batch,
// the inputs of the layers of one cell, and the graph of one layer.
TEST(RecomputeMemory, IsTheInputsAndOneBlock) {
  for (const bool meta : {false, true}) {
    const auto peak = meta ? peak_on_meta : peak_on_cpu;
    const int64_t one_block = peak(1, false, 1);
    const int64_t all = peak(kBlocks, true, kMicrobatches);
    // `one_block` has the output of one micro-batch.
    const int64_t outputs = (kMicrobatches - 1) * kInput;
    const int64_t inputs = kBlocks * kInput;
    EXPECT_GT(one_block, kSteps * kInput);
    EXPECT_LE(all, 1.05 * (inputs + outputs + one_block)) << meta;
    EXPECT_LE(peak(kBlocks, true, 1), 1.05 * (inputs + one_block)) << meta;
    // Without recomputed layers, the graphs of all blocks are held.
    EXPECT_GT(peak(kBlocks, false, kMicrobatches), kBlocks * kSteps * kInput);
  }
}

TEST(RecomputeMemory, CallsEachBlockThreeTimes) {
  GPipe model = pipeline(torch::kCPU, kBlocks, true, kMicrobatches);
  train_once(model, torch::ones({kMicrobatches * kBlockRows, kWidth}));
  for (const auto& each : model->children()) {
    const auto block = std::dynamic_pointer_cast<BlockImpl>(each);
    ASSERT_TRUE(block);
    // Forward, recompute of the cell, recompute of the layer.
    EXPECT_EQ(block->calls, 3 * kMicrobatches);
  }
}

}  // namespace
}  // namespace gpipe
