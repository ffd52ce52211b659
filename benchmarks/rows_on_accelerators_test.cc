// Runs a step of the rows of all tables on simulated accelerators, as
// --mode=measure --devices=0,0 does on a machine with one GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "benchmarks/harness/measure.h"
#include "benchmarks/tables.h"
#include "gpipe/testing/simulated/simulated.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kMostPartitions = 2, kMostChunks = 8;

// Runs one step of each reduced row that is not too long for a test, with one
// sample per micro-batch and all partitions on one device.
void expect_rows_to_run(const Benchmark& benchmark) {
  RunOptions options;
  options.settings.devices.assign(kMostPartitions, c10::Device(c10::kHPU, 0));
  Balancers balancers;
  for (Experiment row : benchmark.small.experiments) {
    if (row.partitions > kMostPartitions || row.chunks > kMostChunks) continue;
    SCOPED_TRACE(row.name);
    row.batch_size = row.chunks;
    options.samples = row.batch_size;
    const Outcome outcome =
        measure(benchmark, benchmark.small, row, options, &balancers);
    EXPECT_THAT(outcome.durations, SizeIs(1));
    ASSERT_THAT(outcome.memory, SizeIs(1));
    EXPECT_GE(outcome.memory[0].peak, outcome.memory[0].lasting());
    EXPECT_GE(*outcome.memory[0].reserved, outcome.memory[0].peak);
  }
  simulated::synchronize();
  EXPECT_THAT(simulated::take_races(), IsEmpty());
}

TEST(RowsOnAcceleratorsTest, OfResNet) {
  expect_rows_to_run(resnet101_speed_benchmark());
}

TEST(RowsOnAcceleratorsTest, OfAmoebaNet) {
  expect_rows_to_run(amoebanetd_speed_benchmark());
  expect_rows_to_run(amoebanetd_memory_benchmark());
}

TEST(RowsOnAcceleratorsTest, OfUNet) {
  expect_rows_to_run(unet_speed_benchmark());
  expect_rows_to_run(unet_memory_benchmark());
}

TEST(RowsOnAcceleratorsTest, OfTheTransformer) {
  expect_rows_to_run(transformer_speed_benchmark());
  expect_rows_to_run(transformer_memory_benchmark());
}

}  // namespace
}  // namespace gpipe::benchmarks
