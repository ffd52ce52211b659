#include "benchmarks/harness/outcome_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Returns memory without buffers and without reserved memory.
DeviceMemory make_memory(int64_t parameters, int64_t gradients,
                         int64_t optimizer_state, int64_t peak) {
  DeviceMemory memory;
  memory.parameters = parameters;
  memory.gradients = gradients;
  memory.optimizer_state = optimizer_state;
  memory.peak = peak;
  return memory;
}

// Returns an outcome with 12 samples in each of the durations.
Outcome timed_outcome(const std::string& name,
                      std::vector<Duration> durations) {
  Outcome outcome;
  outcome.experiment.name = name;
  outcome.samples = 12;
  outcome.durations = std::move(durations);
  return outcome;
}

TEST(FiguresTest, TheSpeedIsTheMedian) {
  const Outcome outcome = timed_outcome("a", {{6, 0}, {1, 0}, {3, 0}});
  EXPECT_THAT(speeds(outcome), ElementsAre(2, 12, 4));
  EXPECT_EQ(figure_of(Figure::kSpeed, outcome, nullptr), 4.0);
}

TEST(FiguresTest, TheSpeedUpIsByTheBaseOfTheRun) {
  const Benchmark benchmark;
  std::vector<Outcome> outcomes{timed_outcome("baseline", {{4, 0}}),
                                timed_outcome("fast", {{1, 0}}),
                                timed_outcome("other", {{2, 0}})};
  EXPECT_EQ(figure_of(Figure::kSpeedUp, outcomes[1],
                      base_of(benchmark, outcomes[1], outcomes)),
            4.0);
  outcomes[1].experiment.base = "other";
  EXPECT_EQ(figure_of(Figure::kSpeedUp, outcomes[1],
                      base_of(benchmark, outcomes[1], outcomes)),
            2.0);
  outcomes[1].experiment.base = "left out";
  EXPECT_EQ(base_of(benchmark, outcomes[1], outcomes), nullptr);
  EXPECT_EQ(figure_of(Figure::kSpeedUp, outcomes[1], nullptr), std::nullopt);
}

TEST(FiguresTest, ABaseThatFailedGivesNoSpeedUp) {
  const Outcome failed = timed_outcome("baseline", {});
  EXPECT_EQ(figure_of(Figure::kSpeedUp, timed_outcome("a", {{1, 0}}), &failed),
            std::nullopt);
}

TEST(FiguresTest, MemoryIsThatOfAllDevices) {
  Outcome outcome;
  outcome.memory = {make_memory(48, 40, 4, 100), make_memory(8, 8, 0, 50)};
  EXPECT_EQ(figure_of(Figure::kParameters, outcome, nullptr), 12.0);
  EXPECT_EQ(figure_of(Figure::kLastingBytes, outcome, nullptr), 108.0);
  EXPECT_EQ(figure_of(Figure::kActivationBytes, outcome, nullptr), 42.0);
  EXPECT_EQ(figure_of(Figure::kTotalBytes, outcome, nullptr), 150.0);
}

TEST(FiguresTest, WhatWasNotLookedAtIsNotZero) {
  const Outcome outcome;
  EXPECT_THAT(speeds(outcome), IsEmpty());
  for (const Figure figure :
       {Figure::kSpeed, Figure::kSpeedUp, Figure::kParameters,
        Figure::kLastingBytes, Figure::kActivationBytes, Figure::kTotalBytes}) {
    EXPECT_EQ(figure_of(figure, outcome, nullptr), std::nullopt);
  }
}

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
