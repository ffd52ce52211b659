// What a step holds, in bytes.
//
// The layers are tanh, which saves its output for backward and nothing else.
// N: bytes of the mini-batch at any layer; n: of a micro-batch. An input that
// the test made before is not counted.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/counting_allocator.h"

namespace gpipe {
namespace {

using testing::CountingAllocator;
using torch::Tensor;

constexpr int64_t kRows = 16;
constexpr int64_t kColumns = 1024;
constexpr int64_t kLayers = 8;
constexpr int64_t kN = kRows * kColumns * 8;

struct Bytes {
  int64_t after_forward;  // held by the graph and the output
  int64_t peak_forward;
  int64_t peak_backward;  // both above what there was before the step
};

class Memory : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { CountingAllocator::install(); }

  Bytes measure(int64_t partitions, int64_t chunks, Checkpoint mode,
                int64_t rows = kRows) {
    torch::nn::Sequential model;
    for (int64_t k = 0; k < kLayers; ++k) model->push_back(torch::nn::Tanh());
    GPipe pipeline(model, GPipeOptions(std::vector<int64_t>(
                                           partitions, kLayers / partitions))
                              .chunks(chunks)
                              .checkpoint(mode)
                              .threads_per_partition(1));
    const Tensor input =
        torch::randn({rows, kColumns}, torch::kDouble).requires_grad_();
    const Tensor grad = torch::ones({rows, kColumns}, torch::kDouble);
    const int64_t before = CountingAllocator::live_bytes();
    CountingAllocator::reset_peak();
    Bytes bytes;
    Tensor output = pipeline->forward(input);
    bytes.after_forward = CountingAllocator::live_bytes() - before;
    bytes.peak_forward = CountingAllocator::peak_bytes() - before;
    CountingAllocator::reset_peak();
    output.backward(grad);
    bytes.peak_backward = CountingAllocator::peak_bytes() - before;
    output.reset();
    // Only the gradient of the input is left.
    EXPECT_EQ(CountingAllocator::live_bytes() - before, rows * kColumns * 8);
    return bytes;
  }
};

// What waits between forward and backward: the cells' graphs or inputs, and the
// output, which is a tensor of its own unless there is one micro-batch.
TEST_F(Memory, KeepsInputsOfCheckpointedCellsAndGraphsOfOthers) {
  for (const int64_t p : {1, 2, 4}) {
    for (const int64_t m : {1, 2, 4, 8}) {
      SCOPED_TRACE("partitions " + std::to_string(p) + ", chunks " +
                   std::to_string(m));
      const int64_t n = kN / m;
      const int64_t own_output = m > 1 ? kN : 0;
      // The first partition's inputs are the user's.
      const int64_t inputs = (p - 1) * n, graph = kLayers * n;
      EXPECT_EQ(measure(p, m, Checkpoint::kNever).after_forward,
                m * graph + own_output);
      EXPECT_EQ(measure(p, m, Checkpoint::kExceptLast).after_forward,
                (m - 1) * inputs + graph + own_output);
      EXPECT_EQ(measure(p, m, Checkpoint::kAlways).after_forward,
                m * inputs + kN);
    }
  }
}

// With one partition nothing happens at the same time, so that the peaks are
// exact too. A backward of tanh holds two gradients, its own and the next; by
// the time of the second one the output of the last tanh has been freed, unless
// somebody else holds it.
TEST_F(Memory, PeaksAtOneGraphOrAtTheSumOfAll) {
  for (const int64_t m : {1, 2, 4, 8}) {
    SCOPED_TRACE("chunks " + std::to_string(m));
    const int64_t n = kN / m;
    const int64_t graph = kLayers * n;

    const Bytes always = measure(1, m, Checkpoint::kAlways);
    // The outputs so far, and the graph of the last cell; or, if that is
    // less, the outputs and the tensor that they are put together in.
    EXPECT_EQ(always.peak_forward,
              std::max((m - 1) * n + graph, m > 1 ? 2 * kN : 0));
    // The output, one graph, and the pieces of the input's gradient so far.
    EXPECT_EQ(always.peak_backward, kN + graph + n + (m - 1) * n);

    const Bytes never = measure(1, m, Checkpoint::kNever);
    EXPECT_EQ(never.peak_forward, never.after_forward);
    EXPECT_EQ(never.peak_backward, never.after_forward + (m > 1 ? n : 2 * n));

    const Bytes except_last = measure(1, m, Checkpoint::kExceptLast);
    EXPECT_GE(except_last.peak_backward, always.peak_backward - n);
    EXPECT_LE(except_last.peak_backward, never.peak_backward);
  }
}

// With several partitions timing decides which of them hold a graph at once,
// but each holds at most one, whatever the number of micro-batches.
TEST_F(Memory, HoldsAtMostOneRecomputedCellPerPartition) {
  for (const int64_t p : {2, 4}) {
    for (const int64_t m : {2, 4, 8}) {
      SCOPED_TRACE("partitions " + std::to_string(p) + ", chunks " +
                   std::to_string(m));
      const int64_t n = kN / m;
      const int64_t cell = kLayers / p * n + 2 * n;  // graph and gradients
      const Bytes bytes = measure(p, m, Checkpoint::kAlways);
      const int64_t inputs = (p - 1) * kN;
      // Gradients on their way between partitions or to the input: at most
      // all of one boundary.
      EXPECT_LE(bytes.peak_backward, kN + inputs + p * cell + kN);
      EXPECT_LT(bytes.peak_backward,
                measure(p, m, Checkpoint::kNever).peak_backward);
    }
  }
}

TEST_F(Memory, LeavesNothingBehindWhenTheGraphIsDropped) {
  torch::nn::Sequential model;
  for (int64_t k = 0; k < kLayers; ++k) model->push_back(torch::nn::Tanh());
  GPipe pipeline(model, GPipeOptions({4, 4}).chunks(4));
  const Tensor input =
      torch::randn({kRows, kColumns}, torch::kDouble).requires_grad_();
  const int64_t before = CountingAllocator::live_bytes();
  for (int step = 0; step < 3; ++step) pipeline->forward(input);
  EXPECT_EQ(CountingAllocator::live_bytes(), before);
}

TEST_F(Memory, KeepsNothingWithoutGradients) {
  torch::nn::Sequential model;
  for (int64_t k = 0; k < kLayers; ++k) model->push_back(torch::nn::Tanh());
  GPipe pipeline(model, GPipeOptions({4, 4}).chunks(4));
  const Tensor input = torch::randn({kRows, kColumns}, torch::kDouble);
  torch::NoGradGuard no_grad;
  const int64_t before = CountingAllocator::live_bytes();
  const Tensor output = pipeline->forward(input);
  EXPECT_EQ(CountingAllocator::live_bytes() - before, kN);
}

}  // namespace
}  // namespace gpipe
