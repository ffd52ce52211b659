#include "benchmarks/harness/experiment/rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;

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
  const auto results = interleaved_rounds<int>({2}, letters(calls));
  EXPECT_EQ(calls, "abcabcabc");
  EXPECT_THAT(results, ElementsAre(ElementsAre(4, 7), ElementsAre(5, 8),
                                   ElementsAre(6, 9)));
}

TEST(InterleavedRoundsTest, AlternatesTheOrder) {
  std::string calls;
  const auto results =
      interleaved_rounds<int>({2, /*warm_up=*/1, true}, letters(calls));
  EXPECT_EQ(calls, "abccbaabc");
  EXPECT_THAT(results, ElementsAre(ElementsAre(6, 7), ElementsAre(5, 8),
                                   ElementsAre(4, 9)));
}

}  // namespace
}  // namespace gpipe::benchmarks
