// Tests of the memory of simulated accelerators: of steps that offload, and of
// steps that run out of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/libtorch/meta_ledger.h"
#include "gpipe/meta.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"
#include "gpipe/testing/simulated/simulated.h"

namespace gpipe {
namespace {

// ---- Tests that offload lowers the memory of devices: a model that does not
// fit trains with it.
//
// Runs on the simulated accelerators, whose memory can be limited. n is the
// number of bytes of a micro-batch at any layer.

using testing::device;
using testing::difference;
using testing::error_of;
using ::testing::HasSubstr;
using testing::mean_square;
using testing::StepState;
using torch::Tensor;
namespace nn = torch::nn;

constexpr int kMicrobatches = 8;
constexpr int64_t kRows = 64, kColumns = 16, kTanhs = 60;
constexpr int64_t kN = kRows * kColumns * 8;

class OffloadMemory : public ::testing::Test {
 protected:
  ~OffloadMemory() override { set_limits(std::nullopt); }

  static void set_limits(std::optional<int64_t> bytes) {
    for (int k = 0; k < 4; ++k) simulated::set_memory_limit(k, bytes);
  }

  // Returns a pipeline whose partitions have a linear layer and kTanhs tanh.
  // Each tanh keeps its output.
  static GPipe pipeline(int partitions) {
    torch::manual_seed(0);
    nn::Sequential model;
    for (int j = 0; j < partitions; ++j) {
      model->push_back(nn::Linear(kColumns, kColumns));
      for (int k = 0; k < kTanhs; ++k) model->push_back(nn::Tanh());
    }
    model->to(torch::kDouble);
    return GPipe(model,
                 testing::options(std::vector<int64_t>(partitions, 1 + kTanhs),
                                  kMicrobatches, Checkpoint::kNever));
  }

  // Runs a step. `wants_input_grad`: whether the input requires a gradient.
  static StepState step(GPipe& pipeline, const Schedule& schedule,
                        bool wants_input_grad) {
    torch::manual_seed(1);
    Tensor x = torch::randn({kMicrobatches * kRows, kColumns}, torch::kDouble);
    const Tensor target = torch::randn_like(x);
    x = x.to(device()).requires_grad_(wants_input_grad);
    pipeline->zero_grad();
    const StepResult result =
        pipeline->train_step(x, target, mean_square, schedule);
    return testing::state_after(*pipeline, result.loss, x);
  }

  static int64_t in_use(int64_t k) {
    testing::settle_engine(device(k));
    simulated::synchronize();
    return simulated::bytes_in_use(k);
  }

  // Returns the peak of each device in a step, above the bytes before it.
  static std::vector<int64_t> peaks(GPipe& pipeline, const Schedule& schedule) {
    step(pipeline, schedule, false);  // makes the allocations that stay
    pipeline->zero_grad();
    const auto ranks = static_cast<int64_t>(schedule.ranks.size());
    std::vector<int64_t> before, peaks;
    for (int64_t k = 0; k < ranks; ++k) {
      before.push_back(in_use(k));
      simulated::reset_peak(k);
    }
    step(pipeline, schedule, false);
    for (int64_t k = 0; k < ranks; ++k) {
      peaks.push_back(simulated::peak_bytes(k) - before[k]);
    }
    pipeline->zero_grad();
    for (int64_t k = 0; k < ranks; ++k) EXPECT_EQ(in_use(k), before[k]);
    return peaks;
  }
  static int64_t peak(GPipe& pipeline, const Schedule& schedule) {
    return peaks(pipeline, schedule).front();
  }
};

Schedule offloaded(const Schedule& schedule, int ahead = 1) {
  return with_offload(
      schedule, [](int, int) { return true; }, ahead);
}

// A cell keeps the outputs of its tanh, and the difference of the loss. The
// inputs are views of the mini-batch, which stays.
TEST_F(OffloadMemory, OfADeviceIsAsTheSimulatorSays) {
  Costs costs;
  costs.forward = {1};
  costs.backward = {2};
  costs.activation_bytes = {static_cast<double>((kTanhs + 1) * kN)};
  costs.host_bandwidth = 2 * costs.activation_bytes[0];  // half a forward
  GPipe one = pipeline(1);
  const Schedule plain = fill_drain(1, kMicrobatches);
  const auto without = static_cast<double>(peak(one, plain));
  const double held = simulate(plain, costs).peak_bytes[0];
  EXPECT_EQ(held, static_cast<double>(kMicrobatches * (kTanhs + 1) * kN));
  const double rest = without - held;  // inputs, targets, temporary tensors
  for (const int ahead : {0, 1, 2, 4}) {
    const Schedule schedule = offloaded(plain, ahead);
    const double predicted = simulate(schedule, costs).peak_bytes[0] + rest;
    const auto measured = static_cast<double>(peak(one, schedule));
    EXPECT_NEAR(measured, predicted, 0.05 * predicted) << ahead;
    EXPECT_LT(measured, 0.75 * without) << ahead;
    std::cout << ahead << ": measured " << measured / kN << " n, predicted "
              << predicted / kN << " n, without offload " << without / kN
              << " n\n";
  }
}

// The bytes of tensors do not include what a copy to the host still reads. So
// they are those of copies that take no time.
TEST_F(OffloadMemory, OfAllRanksOf1F1BIsAsTheSimulatorSays) {
  constexpr int kRanks = 4;
  Costs costs;
  costs.forward.assign(kRanks, 1);
  costs.backward.assign(kRanks, 2);
  costs.activation_bytes.assign(kRanks, kTanhs * kN);
  GPipe four = pipeline(kRanks);
  const Schedule plain = one_forward_one_backward(kRanks, kMicrobatches);
  const auto without = peaks(four, plain);
  const auto held = simulate(plain, costs).peak_bytes;
  for (const int ahead : {1, 2}) {
    const Schedule schedule =
        with_offload(plain, distant_cells(plain, 2), ahead);
    const auto predicted = simulate(schedule, costs).peak_bytes;
    const auto measured = peaks(four, schedule);
    for (std::size_t r = 0; r < kRanks; ++r) {
      const double rest = static_cast<double>(without[r]) - held[r];
      EXPECT_NEAR(static_cast<double>(measured[r]), predicted[r] + rest,
                  0.05 * (predicted[r] + rest))
          << "rank " << r << ", ahead " << ahead;
      std::cout << "1f1b, ahead " << ahead << ", rank " << r << ": measured "
                << measured[r] / kN << " n, predicted "
                << (predicted[r] + rest) / kN << " n, without offload "
                << without[r] / kN << " n\n";
    }
  }
}

// Returns the peak of a dry run of one partition, above the bytes before it.
int64_t peak_of_dry_run(const Schedule& schedule) {
  const auto numbers = torch::dtype(torch::kDouble).device(torch::kMeta);
  GPipe one = [] {
    const MetaGuard meta;
    nn::Sequential model(nn::Linear(kColumns, kColumns));
    for (int k = 0; k < kTanhs; ++k) model->push_back(nn::Tanh());
    model->to(torch::kDouble);
    return GPipe(model, GPipeOptions({1 + kTanhs})
                            .devices({torch::Device(torch::kMeta)})
                            .checkpoint(Checkpoint::kNever));
  }();
  const Tensor x = torch::empty({kMicrobatches * kRows, kColumns}, numbers);
  const MetaLedger ledger;
  one->train_step(x, x, mean_square, schedule);
  return ledger.peak_bytes();
}

TEST_F(OffloadMemory, OfADryRunIsThatOfADevice) {
  GPipe one = pipeline(1);
  const Schedule plain = fill_drain(1, kMicrobatches);
  const int64_t device = peak(one, plain), dry = peak_of_dry_run(plain);
  for (const int ahead : {0, 1, 2, 4}) {
    const Schedule schedule = offloaded(plain, ahead);
    EXPECT_EQ(device - peak(one, schedule), dry - peak_of_dry_run(schedule))
        << ahead;
  }
}

TEST_F(OffloadMemory, IsEnoughForAModelThatDoesNotFit) {
  // Without offload a rank holds 8 cells of at least kTanhs n. With it a rank
  // holds 2, and up to 8 outputs that wait for the next rank. Inputs, targets
  // and gradients of the input take 16 n.
  constexpr int64_t kLimit = (6 * kTanhs + 8) * kN;
  static_assert(kLimit > (2 * (kTanhs + 1) + 8 + 16 + 8) * kN);
  const Schedule plain = fill_drain(4, kMicrobatches);
  GPipe large = pipeline(4);
  const StepState expected = step(large, plain, true);
  large = nullptr;
  set_limits(kLimit);
  GPipe small = pipeline(4);
  EXPECT_THAT(error_of([&] { step(small, plain, true); }),
              HasSubstr("is out of memory"));
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(difference(step(small, offloaded(plain), true), expected), "");
  }
  // Afterwards the same pipeline still reports that the plain step does not
  // fit, and then trains again.
  EXPECT_THAT(error_of([&] { step(small, plain, true); }),
              HasSubstr("is out of memory"));
  EXPECT_EQ(difference(step(small, offloaded(plain), true), expected), "");
}

// A full device is an error with its place, and leaves nothing.
TEST_F(OffloadMemory, ThatIsNotEnoughIsAnErrorOfTheCell) {
  GPipe one = pipeline(1);
  const Schedule schedule = offloaded(fill_drain(1, kMicrobatches), 8);
  step(one, schedule, false);
  one->zero_grad();
  const int64_t before = in_use(0);
  // The inputs and targets take 16 n. The copies back of 8 cells begin early,
  // and the memory is enough for 4.
  simulated::set_memory_limit(0, before + (16 + 4 * (kTanhs + 1) + 8) * kN);
  const std::string error = error_of([&] { step(one, schedule, false); });
  EXPECT_THAT(error, HasSubstr("is out of memory"));
  EXPECT_THAT(error, HasSubstr(", reload"));
  ASSERT_TRUE(one->last_failure().has_value());
  EXPECT_EQ(one->last_failure()->phase, Phase::kReload);
  EXPECT_EQ(in_use(0), before);
  simulated::set_memory_limit(0, std::nullopt);
  step(one, schedule, false);
}

// ---- Tests that a full device is an error with place and bytes, and that a
// smaller mini-batch works after it.
//
// Runs on the simulated accelerators, whose memory can be limited. The layers
// are tanh, which saves only its output for backward. n is the number of bytes
// of a micro-batch at any layer.

using testing::options;
using testing::settle_engine;
using ::testing::StartsWith;

class OutOfMemory : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 16, kColumns = 512, kChunks = 4;
  static constexpr int64_t kN = kRows / kChunks * kColumns * 8;

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
