// Tests that a full device is an error with place and bytes, and that a smaller
// mini-batch works after it.
//
// Runs on the simulated accelerators, whose memory can be limited. The layers
// are tanh, which saves only its output for backward. n is the number of bytes
// of a micro-batch at any layer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/engine.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/simulated/simulated.h"

namespace gpipe {
namespace {

using testing::device;
using testing::error_of;
using testing::options;
using testing::settle_engine;
using ::testing::StartsWith;
using torch::Tensor;

constexpr int64_t kRows = 16, kColumns = 512, kChunks = 4;
constexpr int64_t kN = kRows / kChunks * kColumns * 8;

class OutOfMemory : public ::testing::Test {
 protected:
  ~OutOfMemory() override { simulated::set_memory_limit(1, std::nullopt); }

  static GPipe pipeline(Checkpoint mode) {
    torch::nn::Sequential model;
    for (int k = 0; k < 4; ++k) model->push_back(torch::nn::Tanh());
    return GPipe(model, options({1, 1, 1, 1}, kChunks, mode));
  }

  static Tensor input(int64_t rows) {
    return torch::ones({rows, kColumns},
                       torch::dtype(torch::kDouble).device(device()))
        .requires_grad_();
  }

  // Sets the limit in units of n / 2.
  static void set_limit(int64_t halves) {
    simulated::set_memory_limit(1, halves * kN / 2);
  }

  static std::string text(int64_t in_use, int64_t halves,
                          const std::string& place) {
    return "c10::OutOfMemoryError: hpu:1 is out of memory: asked for " +
           std::to_string(kN) + " bytes with " + std::to_string(in_use * kN) +
           " of " + std::to_string(halves * kN / 2) + " bytes in use (in " +
           place;
  }

  static void expect_failure(const GPipe& pipeline, int64_t microbatch,
                             Phase phase) {
    const auto failure = pipeline->last_failure();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->partition, 1);
    EXPECT_EQ(failure->microbatch, microbatch);
    EXPECT_EQ(failure->phase, phase);
  }

  // Expects that half as many rows work, including all gradients, and that no
  // memory is left over.
  static void expect_half_works(GPipe& pipeline) {
    const std::vector<int64_t> nothing(4, 0);
    EXPECT_EQ(in_use(), nothing) << "after the failure";
    {
      Tensor x = input(kRows / 2);
      pipeline->forward(x).sum().backward();
      Tensor plain = torch::ones({kRows / 2, kColumns}, torch::kDouble);
      plain.requires_grad_();
      plain.tanh().tanh().tanh().tanh().sum().backward();
      EXPECT_TRUE(torch::equal(x.grad().cpu(), plain.grad()));
    }
    EXPECT_EQ(in_use(), nothing) << "after the step with half the rows";
  }

  static std::vector<int64_t> in_use() {
    std::vector<int64_t> bytes;
    for (int64_t k = 0; k < 4; ++k) {
      settle_engine(device(k));
      bytes.push_back(simulated::bytes_in_use(k));
    }
    return bytes;
  }
};

// A cell needs its input, 1 n, and its output, 1 n, and keeps the output. When
// the third cell runs, 2 n are kept, and 3 n with its input.
TEST_F(OutOfMemory, InForwardNamesPlaceAndBytes) {
  GPipe model = pipeline(Checkpoint::kNever);
  set_limit(7);
  EXPECT_THAT(error_of([&] { model->forward(input(kRows)); }),
              StartsWith(text(3, 7, "partition 1, micro-batch 2, forward")));
  expect_failure(model, 2, Phase::kForward);
  expect_half_works(model);
}

// All 4 outputs are kept, and the incoming gradient.
TEST_F(OutOfMemory, InBackwardNamesPlaceAndBytes) {
  GPipe model = pipeline(Checkpoint::kNever);
  set_limit(11);
  {
    const Tensor x = input(kRows);
    Tensor loss = model->forward(x).sum();
    EXPECT_THAT(
        error_of([&] { loss.backward(); }),
        StartsWith(text(5, 11, "partition 1, micro-batch 3, backward")));
    EXPECT_FALSE(x.grad().defined());
  }
  expect_failure(model, 3, Phase::kBackward);
  expect_half_works(model);
}

// All 4 inputs are kept.
TEST_F(OutOfMemory, InRecomputeNamesPlaceAndBytes) {
  GPipe model = pipeline(Checkpoint::kAlways);
  {
    const Tensor x = input(kRows);
    Tensor loss = model->forward(x).sum();
    set_limit(9);
    EXPECT_THAT(
        error_of([&] { loss.backward(); }),
        StartsWith(text(4, 9, "partition 1, micro-batch 3, recompute")));
  }
  expect_failure(model, 3, Phase::kRecomputing);
  expect_half_works(model);
}

}  // namespace
}  // namespace gpipe
