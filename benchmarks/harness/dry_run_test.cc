#include "benchmarks/harness/dry_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "benchmarks/harness/experiments_of_tests.h"
#include "gpipe/base/instruments.h"
#include "gpipe/meta.h"
#include "models/amoebanet.h"
#include "models/unet.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

torch::nn::Sequential relus(int count) {
  torch::nn::Sequential model;
  for (int i = 0; i < count; ++i) model->push_back(torch::nn::ReLU());
  return model;
}

TEST(ParameterBalance, CutsByBytesOfParameters) {
  const MetaGuard meta;  // meta tensors have no values to read
  const torch::nn::Sequential model(
      torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), torch::nn::Linear(4, 4),
      torch::nn::Linear(12, 4));  // 20, 20, 20 and 52 parameters
  EXPECT_THAT(balance_by_parameters(model, 1), ElementsAre(4));
  EXPECT_THAT(balance_by_parameters(model, 2), ElementsAre(3, 1));
  EXPECT_THAT(balance_by_parameters(model, 4), ElementsAre(1, 1, 1, 1));
}

TEST(ParameterBalance, SpreadsLayersWithoutParameters) {
  EXPECT_THAT(balance_by_parameters(relus(4), 2), ElementsAre(2, 2));
}

TEST(ParameterBalance, RefusesMorePartitionsThanLayers) {
  EXPECT_THROW(balance_by_parameters(relus(2), 3), std::invalid_argument);
}

using torch::Tensor;

constexpr int64_t kWidth = 64;
constexpr int64_t kFloat = 4;

// Returns a chain of products with square matrices. Their graphs keep the
// inputs and nothing else.
Benchmark products(int64_t layers) {
  Benchmark benchmark;
  benchmark.model = [layers](const Experiment&) {
    torch::nn::Sequential model;
    for (int64_t k = 0; k < layers; ++k) {
      model->push_back(torch::nn::Linear(
          torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    }
    return model;
  };
  benchmark.loss = [](const Tensor& output, const Tensor& target) {
    return (output * target).sum();
  };
  return benchmark;
}

Workload rows_of_floats() {
  Workload workload;
  workload.input = workload.target = [](int64_t rows) {
    return torch::rand({rows, kWidth});
  };
  return workload;
}

TEST(DryRunTest, CountsWhatStays) {
  Benchmark benchmark = products(4);
  const auto memory = [&] {
    return dry_run(benchmark, rows_of_floats(),
                   experiment_of({1, 3}, 32, 4, Checkpoint::kNever))
        .memory;
  };
  constexpr int64_t kMatrix = kWidth * kWidth * kFloat;
  for (const auto optimizer : {Optimizer::kSgd, Optimizer::kRmsprop}) {
    benchmark.optimizer = optimizer;
    const auto devices = memory();
    ASSERT_EQ(devices.size(), 2u);
    for (std::size_t j = 0; j < 2; ++j) {
      const int64_t matrices = (j == 0 ? 1 : 3) * kMatrix;
      EXPECT_EQ(devices[j].parameters, matrices);
      EXPECT_EQ(devices[j].gradients, matrices);
      // RMSprop keeps one number per parameter.
      const int64_t expected = optimizer == Optimizer::kRmsprop ? matrices : 0;
      EXPECT_EQ(devices[j].optimizer_state, expected);
      EXPECT_GE(devices[j].peak, devices[j].lasting());
    }
  }
}

// Each partition holds every micro-batch that it received from its forward to
// its backward, and one gradient at a time.
TEST(DryRunTest, CountsWhatCrossesBoundaries) {
  constexpr int64_t kRows = 32, kChunks = 8;
  const auto devices =
      dry_run(products(3), rows_of_floats(),
              experiment_of({1, 1, 1}, kRows, kChunks, Checkpoint::kNever))
          .memory;
  constexpr int64_t kBatch = kRows * kWidth * kFloat;
  ASSERT_EQ(devices.size(), 3u);
  // The first partition receives only gradients, one micro-batch at a time.
  EXPECT_EQ(devices[0].boundary, kBatch / kChunks);
  EXPECT_EQ(devices[1].boundary, kBatch + kBatch / kChunks);
  EXPECT_EQ(devices[2].boundary, kBatch);
}

TEST(DryRunTest, RepeatsToTheByte) {
  const auto run = [] {
    return dry_run(products(16), rows_of_floats(),
                   experiment_of({2, 2, 2, 2, 2, 2, 2, 2}, 64, 16,
                                 Checkpoint::kExceptLast))
        .memory;
  };
  const auto first = run(), second = run();
  for (std::size_t j = 0; j < first.size(); ++j) {
    EXPECT_EQ(first[j].peak, second[j].peak);
    EXPECT_EQ(first[j].activations(), second[j].activations());
    EXPECT_EQ(first[j].boundary, second[j].boundary);
  }
}

TEST(DryRunTest, CheckpointsTakeLessForMoreMicroBatches) {
  const auto activations = [](int64_t chunks, Checkpoint checkpoint) {
    return dry_run(products(8), rows_of_floats(),
                   experiment_of({8}, 64, chunks, checkpoint))
        .memory[0]
        .activations();
  };
  EXPECT_LT(activations(8, Checkpoint::kAlways),
            activations(2, Checkpoint::kAlways));
  EXPECT_LT(activations(8, Checkpoint::kAlways),
            activations(8, Checkpoint::kNever));
}

TEST(DryRunTest, ThePlainModelTakesTheBytesOfTheCpu) {
  using gpipe::instruments::CountingAllocator;
  instruments::CountingAllocator::install();
  const Benchmark benchmark = products(5);
  const Workload workload = rows_of_floats();
  Experiment plain;
  plain.batch_size = 32;
  const DeviceMemory foretold =
      dry_run(benchmark, workload, plain).memory.at(0);

  const int64_t before = instruments::CountingAllocator::live_bytes();
  auto model = benchmark.model(plain);
  const Tensor input = workload.input(32), target = workload.target(32);
  instruments::CountingAllocator::reset_peak();
  benchmark.loss(model->forward(input), target).backward();
  EXPECT_EQ(foretold.peak,
            instruments::CountingAllocator::peak_bytes() - before);
}

int64_t sum(const std::vector<DeviceMemory>& devices,
            int64_t (DeviceMemory::*of)() const) {
  return std::accumulate(devices.begin(), devices.end(), int64_t{0},
                         [of](int64_t all, const DeviceMemory& each) {
                           return all + (each.*of)();
                         });
}

// The largest U-Net of torchgpipe's table, at its published size.
TEST(DryRunTest, CountsTheLargestUNet) {
  Benchmark benchmark;
  benchmark.model = [](const Experiment&) { return models::unet(5, 48, 160); };
  benchmark.loss = mask_loss;
  const auto devices =
      dry_run(benchmark, images_with_masks(192, Mask::kRandom),
              experiment_of({800, 140, 62, 36, 36, 36, 36, 987}, 4, 4,
                            Checkpoint::kAlways))
          .memory;
  const std::vector<int64_t> parameters = {
      1'254'532'320, 2'064'384'000, 2'182'348'800, 2'123'366'400,
      2'123'366'400, 2'123'366'400, 2'123'366'400, 1'827'475'280};
  ASSERT_EQ(devices.size(), parameters.size());
  for (std::size_t j = 0; j < devices.size(); ++j) {
    EXPECT_EQ(devices[j].parameters, kFloat * parameters[j]);
  }
  EXPECT_EQ(sum(devices, &DeviceMemory::lasting), 8 * 15'822'206'000);
}

TEST(DryRunTest, CountsAnAmoebaNet) {
  Benchmark benchmark;
  benchmark.optimizer = Optimizer::kRmsprop;
  benchmark.model = [](const Experiment&) {
    return models::amoebanetd(1000, 18, 544);
  };
  benchmark.loss = cross_entropy;
  const auto devices =
      dry_run(benchmark, images_of_classes(224, 1000),
              experiment_of({16, 8}, 2, 2, Checkpoint::kExceptLast))
          .memory;
  EXPECT_EQ(devices[0].parameters, kFloat * 126'868'688);
  EXPECT_EQ(devices[1].parameters, kFloat * 415'866'152);
  EXPECT_EQ(sum(devices, &DeviceMemory::lasting), int64_t{12} * 542'734'840);
}

TEST(DryRunTest, RefusesMoreDevicesThanCanBeNumbered) {
  const auto run = [](int64_t partitions) {
    return dry_run(products(partitions), rows_of_floats(),
                   experiment_of(std::vector<int64_t>(partitions, 1), 1, 1,
                                 Checkpoint::kNever));
  };
  EXPECT_EQ(run(128).memory.size(), 128u);
  EXPECT_THAT([&] { run(129); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("129")));
}

}  // namespace
}  // namespace gpipe::benchmarks
