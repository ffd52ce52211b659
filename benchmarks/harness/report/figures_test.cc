#include "benchmarks/harness/report/figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "benchmarks/harness/device_memory_testing.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

}  // namespace
}  // namespace gpipe::benchmarks
