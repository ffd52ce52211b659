#include "benchmarks/harness/report/outcome_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "benchmarks/harness/device_memory_testing.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Benchmark table_benchmark() {
  Benchmark benchmark;
  benchmark.title = "Toy";
  benchmark.size_column = "(L, D)";
  benchmark.published = {{"theirs samples/s", Figure::kSpeed},
                         {"theirs total", Figure::kTotalBytes}};
  return benchmark;
}

Outcome outcome_of(const std::string& name, int64_t partitions) {
  Outcome outcome;
  outcome.experiment.name = name;
  outcome.experiment.partitions = partitions;
  outcome.experiment.batch_size = 8;
  outcome.experiment.chunks = 4;
  outcome.experiment.size = {3, 16};
  outcome.experiment.published = {2.5, 2048.0};
  return outcome;
}

// Returns an outcome with three durations, and one that failed.
std::vector<Outcome> make_measured() {
  Outcome baseline = outcome_of("baseline", 0);
  baseline.devices = "cpu";
  baseline.threads = "2";
  baseline.samples = 6;
  baseline.durations = {{2, 0}, {3, 0}, {6, 0}};
  baseline.memory = {make_memory(10, 10, 0, 1024)};
  Outcome failed = outcome_of("pipeline-2", 2);
  failed.experiment.balance = {1, 2};
  failed.error = "out of memory";
  return {baseline, failed};
}

TEST(OutcomeTableTest, MeasuredSpeeds) {
  const Table table =
      outcome_table(table_benchmark(), Mode::kMeasure, make_measured());
  EXPECT_EQ(to_csv(table),
            "# Toy\n"
            "experiment,\"(L, D)\",batch,chunks,balance,checkpoint,mode,"
            "devices,CPU threads,samples/s,min samples/s,max "
            "samples/s,speed-up,peak memory bytes,theirs samples/s,error\n"
            "baseline,\"3,16\",8,,,,measured,cpu,2,2.000,1.000,3.000,1.000,"
            "1024,2.500,\n"
            "pipeline-2,\"3,16\",8,4,\"1,2\",except_last,measured,,,,,,,,"
            "2.500,out of memory\n");
}

TEST(OutcomeTableTest, DryRunsTellMemoryByKind) {
  Outcome outcome = outcome_of("pipeline-2", 2);
  outcome.mode = Mode::kDryRun;
  outcome.experiment.balance = {1, 2};
  outcome.memory = {make_memory(48, 40, 0, 200), make_memory(8, 8, 8, 100)};
  outcome.memory[0].boundary = 16;
  outcome.memory[1].boundary = 4;
  EXPECT_EQ(
      to_csv(outcome_table(table_benchmark(), Mode::kDryRun, {outcome})),
      "# Toy\n"
      "experiment,\"(L, D)\",batch,chunks,balance,checkpoint,mode,parameters,"
      "model memory bytes,activations bytes,total memory bytes,largest device "
      "bytes,copied in bytes,theirs total bytes,error\n"
      "pipeline-2,\"3,16\",8,4,\"1,2\",except_last,dry-run,12,112,188,300,200,"
      "20,2048,\n");
}

TEST(OutcomeTableTest, SimulatedSpeedsHaveNoSpreadAndABubble) {
  Outcome outcome = outcome_of("pipeline-2", 2);
  outcome.mode = Mode::kSimulate;
  outcome.samples = 8;
  outcome.durations = {{4, 0}};
  outcome.timeline.emplace().bubble_fraction = 0.25;
  EXPECT_EQ(
      to_csv(outcome_table(table_benchmark(), Mode::kSimulate, {outcome})),
      "# Toy\n"
      "experiment,\"(L, D)\",batch,chunks,balance,checkpoint,mode,"
      "samples/s,speed-up,bubble %,theirs samples/s,error\n"
      "pipeline-2,\"3,16\",8,4,,except_last,simulated,2.000,,25.0,"
      "2.500,\n");
}

TEST(OutcomeTableTest, ReservedMemoryIsApartWhereAnAllocatorTellsIt) {
  auto outcomes = make_measured();
  EXPECT_THAT(
      to_text(outcome_table(table_benchmark(), Mode::kMeasure, outcomes)),
      Not(HasSubstr("reserved")));
  outcomes[0].memory[0].reserved = 4096;
  EXPECT_THAT(
      to_text(outcome_table(table_benchmark(), Mode::kMeasure, outcomes)),
      AllOf(HasSubstr("reserved"), HasSubstr("1 KiB"), HasSubstr("4 KiB")));
}

TEST(OutcomeTableTest, APlanHasNoResults) {
  Outcome outcome = outcome_of("pipeline-2", 2);
  outcome.devices = "cpu x 2";
  EXPECT_EQ(to_csv(plan_table(table_benchmark(), Mode::kMeasure, {outcome})),
            "# Toy (the plan; nothing was run)\n"
            "experiment,partitions,\"(L, D)\",batch,chunks,balance,checkpoint,"
            "mode,devices,CPU threads,error\n"
            "pipeline-2,2,\"3,16\",8,4,,except_last,measured,cpu x 2,,\n");
}

TEST(OutcomeTableTest, LongBalancesAreShortened) {
  EXPECT_EQ(balance_text({}), "");
  EXPECT_EQ(balance_text({1, 1, 2}), "1,1,2");
  std::vector<int64_t> balance(17, 26);
  balance.front() = 27;
  EXPECT_EQ(balance_text(balance), "27, 26 x 16");
}

}  // namespace
}  // namespace gpipe::benchmarks
