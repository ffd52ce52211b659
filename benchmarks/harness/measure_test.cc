#include "benchmarks/harness/measure.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "benchmarks/harness/devices.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// Returns a benchmark with three layers of 4 x 4 weights without biases. A
// sample has 4 floats.
Benchmark make_benchmark() {
  Benchmark benchmark;
  benchmark.model = [](const Experiment&) {
    const auto layer = [] {
      return torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false));
    };
    return torch::nn::Sequential(layer(), layer(), layer());
  };
  benchmark.loss = [](const at::Tensor& output, const at::Tensor& target) {
    return (output - target).square().mean();
  };
  benchmark.small.input = [](int64_t rows) { return at::ones({rows, 4}); };
  benchmark.small.target = benchmark.small.input;
  return benchmark;
}

RunOptions make_options() {
  RunOptions options;
  options.settings.devices = {c10::kCPU};
  options.samples = 20;
  options.epochs = 3;
  options.skip_epochs = 1;
  return options;
}

Outcome run(const Benchmark& benchmark, const Experiment& experiment) {
  Balancers balancers;
  return measure(benchmark, benchmark.small, experiment, make_options(),
                 &balancers);
}

const Experiment kPlain{"baseline",         0,  8,  1, {},
                        Checkpoint::kNever, {}, {}, ""};

TEST(MeasureTest, ADurationPerEpochThatIsNotSkipped) {
  const Outcome outcome = run(make_benchmark(), kPlain);
  EXPECT_THAT(outcome.durations, SizeIs(2));
  EXPECT_EQ(outcome.samples, 20);
  EXPECT_EQ(outcome.devices, "cpu");
}

TEST(MeasureTest, AnEpochOfAMemoryTableIsAMiniBatch) {
  Benchmark benchmark = make_benchmark();
  benchmark.table_kind = TableKind::kMemory;
  EXPECT_EQ(run(benchmark, kPlain).samples, 8);
}

TEST(MeasureTest, MemoryIsByKind) {
  Benchmark benchmark = make_benchmark();
  benchmark.optimizer = Optimizer::kRmsprop;
  const Outcome outcome = run(benchmark, kPlain);
  constexpr int64_t kWeights = 3 * 16 * 4;  // bytes
  ASSERT_THAT(outcome.memory, SizeIs(1));
  EXPECT_EQ(outcome.memory[0].parameters, kWeights);
  EXPECT_EQ(outcome.memory[0].gradients, kWeights);
  EXPECT_EQ(outcome.memory[0].optimizer_state, kWeights);
  // Activations include the input and the target: 8 samples of 4 floats each.
  EXPECT_GT(outcome.memory[0].activations(), 2 * 8 * 4 * 4);
}

TEST(MeasureTest, ModelsAreGivenBack) {
  const int64_t first = run(make_benchmark(), kPlain).memory[0].peak;
  EXPECT_EQ(run(make_benchmark(), kPlain).memory[0].peak, first);
}

TEST(MeasureTest, AnEmptyBalanceIsFilledIn) {
  Experiment experiment = kPlain;
  experiment.partitions = 1;
  EXPECT_THAT(run(make_benchmark(), experiment).experiment.balance,
              ElementsAre(3));
  experiment.partitions = 3;
  const Outcome outcome = run(make_benchmark(), experiment);
  EXPECT_THAT(outcome.experiment.balance, ElementsAre(1, 1, 1));
  EXPECT_EQ(outcome.devices, "cpu x 3");
}

TEST(MeasureTest, TooFewDevicesAreToldWithTheRemedy) {
  RunOptions options = make_options();
  options.settings.devices = {c10::kCPU, c10::kCPU};
  Experiment experiment = kPlain;
  experiment.partitions = 3;
  const Benchmark benchmark = make_benchmark();
  Balancers balancers;
  EXPECT_THROW(
      measure(benchmark, benchmark.small, experiment, options, &balancers),
      MissingDevices);
}

}  // namespace
}  // namespace gpipe::benchmarks
