#include "benchmarks/harness/timing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;

TEST(StatisticsTest, OfNothingIsZero) {
  EXPECT_EQ(mean({}), 0);
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(deviation({}), 0);
  EXPECT_EQ(deviation({5}), 0);
}

TEST(StatisticsTest, MatchesHandComputedValues) {
  EXPECT_DOUBLE_EQ(mean({2, 4, 9}), 5);
  EXPECT_DOUBLE_EQ(median({9, 2, 4}), 4);
  EXPECT_DOUBLE_EQ(median({9, 2, 4, 6}), 5);
  EXPECT_DOUBLE_EQ(deviation({1, 3, 5}), 2);
}

// Returns steps that append their letters to `calls`, and return its length.
std::vector<std::function<int()>> letters(std::string& calls) {
  std::vector<std::function<int()>> steps;
  for (const char letter : {'a', 'b', 'c'}) {
    steps.emplace_back([&calls, letter] {
      calls += letter;
      return static_cast<int>(calls.size());
    });
  }
  return steps;
}

TEST(InterleavedRoundsTest, RunsTheStepsInTurnAndDropsTheWarmUp) {
  std::string calls;
  const auto results =
      interleaved_rounds<int>(2, /*warm_up=*/1, letters(calls));
  EXPECT_EQ(calls, "abcabcabc");
  EXPECT_THAT(results, ElementsAre(ElementsAre(4, 7), ElementsAre(5, 8),
                                   ElementsAre(6, 9)));
}

TEST(ProgressTest, LineTellsShareRateAndTimeLeft) {
  EXPECT_EQ(progress_line("pipeline-2", 65, 2, 3, 0.5, 21.34),
            "pipeline-2 | epoch 2/3 (50%) | 21.3 samples/s | 00:01:05 | "
            "00:01:05 left");
}

TEST(ProgressTest, LineWithoutAnythingDoneJudgesNoTime) {
  EXPECT_EQ(progress_line("a", 0, 1, 3, 0, 0),
            "a | epoch 1/3 (0%) | 0.0 samples/s | 00:00:00");
}

}  // namespace
}  // namespace gpipe::benchmarks
