// Tests the peak memory of a partition whose layers are recomputed.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>

#include "gpipe/base/instruments/counting_allocator.h"
#include "gpipe/gpipe.h"
#include "gpipe/meta.h"
#include "gpipe/meta/ledger.h"
#include "gpipe/recomputed.h"

namespace gpipe {
namespace {

using instruments::CountingAllocator;
using torch::Tensor;
using torch::nn::Sequential;

constexpr int64_t kBlocks = 24, kRows = 512, kWidth = 32, kMicrobatches = 2;
// The bytes of the input of a layer of one micro-batch.
constexpr int64_t kInput = kRows * kWidth * sizeof(float);

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
  const Tensor input = torch::ones({microbatches * kRows, kWidth});
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
      torch::empty({microbatches * kRows, kWidth}, torch::kMeta);
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
  train_once(model, torch::ones({kMicrobatches * kRows, kWidth}));
  for (const auto& each : model->children()) {
    const auto block = std::dynamic_pointer_cast<BlockImpl>(each);
    ASSERT_TRUE(block);
    // Forward, recompute of the cell, recompute of the layer.
    EXPECT_EQ(block->calls, 3 * kMicrobatches);
  }
}

}  // namespace
}  // namespace gpipe
