#include "gpipe/testing/fuzz/mutator.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace gpipe::testing {
namespace {

FuzzCorpus corpus() { return {{"0F0,0B0\n", "(0F1;0B0)\n"}, {"OVERLAP"}}; }

std::string next(Mutator& mutator, std::size_t longest = 100) {
  std::string bytes = mutator.pick();
  mutator.change(bytes, longest);
  return bytes;
}

TEST(MutatorTest, TheSameSeedMakesTheSameInputs) {
  Mutator one(corpus(), 7);
  Mutator two(corpus(), 7);
  Mutator other(corpus(), 8);
  int different = 0;
  for (int k = 0; k < 100; ++k) {
    const std::string input = next(one);
    EXPECT_EQ(input, next(two));
    different += input != next(other) ? 1 : 0;
  }
  EXPECT_GT(different, 90);
}

TEST(MutatorTest, MakesManyInputs) {
  Mutator mutator(corpus(), 1);
  std::set<std::string> inputs;
  int with_word = 0;
  for (int k = 0; k < 10000; ++k) {
    const auto [input, added] = inputs.insert(next(mutator));
    with_word += input->find("OVERLAP") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(inputs.size(), 6000);
  EXPECT_GT(with_word, 500);
}

TEST(MutatorTest, MakesNoneThatIsLongerThanAllowed) {
  Mutator mutator(corpus(), 1);
  std::size_t longest = 0;
  for (int k = 0; k < 10000; ++k) {
    longest = std::max(longest, next(mutator, 12).size());
  }
  EXPECT_EQ(longest, 12);
}

TEST(MutatorTest, BeginsWithNothing) {
  Mutator mutator({{""}, {}}, 1);
  std::size_t longest = 0;
  for (int k = 0; k < 1000; ++k) {
    longest = std::max(longest, next(mutator).size());
  }
  EXPECT_GT(longest, 7);
}

}  // namespace
}  // namespace gpipe::testing
