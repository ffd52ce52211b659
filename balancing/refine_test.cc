#include "balancing/refine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "balancing/planner/testing.h"

namespace gpipe::balancing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;

using Balance = std::vector<int64_t>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns a number for each balance that is independent of the others.
double noise(const Balance& balance) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a, with a multiply at the end
  for (int64_t length : balance) {
    hash = (hash ^ static_cast<uint64_t>(length)) * 1099511628211u;
  }
  hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9u;
  return static_cast<double>((hash >> 32) % 1000);
}

double squares(const std::vector<double>& costs, const Balance& balance) {
  double sum = 0;
  auto at = costs.begin();
  for (int64_t length : balance) {
    const double block = std::accumulate(at, at + length, 0.0);
    sum += block * block;
    at += length;
  }
  return sum;
}

std::vector<double> random_costs(std::mt19937& random, std::size_t layers) {
  std::vector<double> costs(layers);
  for (double& cost : costs) cost = 1 + random() % 20;
  return costs;
}

Balance random_balance(std::mt19937& random, int64_t layers,
                       int64_t partitions) {
  Balance balance(partitions, 1);
  for (int64_t k = partitions; k < layers; ++k)
    ++balance[random() % partitions];
  return balance;
}

TEST(RefineTest, IsNeverWorseThanAnyStart) {
  std::mt19937 random(0);
  for (int trial = 0; trial < 2000; ++trial) {
    const auto partitions = static_cast<int64_t>(1 + random() % 6);
    const auto layers = partitions + static_cast<int64_t>(random() % 30);
    std::vector<Balance> starts(1 + random() % 3);
    double least = kInfinity;
    for (Balance& start : starts) {
      start = random_balance(random, layers, partitions);
      least = std::min(least, noise(start));
    }
    RefineOptions options;
    options.score_calls = random() % 100;
    std::set<Balance> scored;
    const Balance best = refine(
        starts,
        [&](const Balance& balance) {
          EXPECT_TRUE(scored.insert(balance).second) << "scored twice";
          EXPECT_THAT(balance, Each(Ge(1)));
          EXPECT_EQ(std::accumulate(balance.begin(), balance.end(), int64_t{0}),
                    layers);
          return noise(balance);
        },
        options);
    ASSERT_LE(noise(best), least);
    ASSERT_EQ(scored.count(best), 1);
    for (const Balance& balance : scored)
      ASSERT_GE(noise(balance), noise(best));
    ASSERT_LE(scored.size(), starts.size() + options.score_calls);
  }
}

TEST(RefineTest, KeepsTheFirstOfEqualStarts) {
  const auto score = [](const Balance&) { return 42.0; };
  EXPECT_THAT(refine({{1, 2, 3}, {3, 2, 1}}, score), ElementsAre(1, 2, 3));
  EXPECT_THAT(refine({{3, 2, 1}, {1, 2, 3}}, score), ElementsAre(3, 2, 1));
  RefineOptions few;
  few.score_calls = 3;
  EXPECT_THAT(refine({{3, 2, 1}, {1, 2, 3}}, score, few), ElementsAre(3, 2, 1));
}

TEST(RefineTest, TriesAllCutsIfTheyAreFew) {
  // There are 126 cuts. With one call fewer it is a local search, which finds
  // the best of such scores only by chance.
  RefineOptions all, less;
  all.score_calls = 126;
  less.score_calls = 125;
  std::mt19937 random(1);
  int missed = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const auto salt = static_cast<int64_t>(random());
    const auto score = [&](Balance balance) {
      balance.push_back(salt);
      return noise(balance);
    };
    double least = kInfinity;
    for_each_balance(10, 5, [&](const Balance& balance) {
      least = std::min(least, score(balance));
    });
    ASSERT_EQ(score(refine({2, 2, 2, 2, 2}, score, all)), least);
    if (score(refine({2, 2, 2, 2, 2}, score, less)) > least) ++missed;
  }
  EXPECT_GT(missed, 20);
}

TEST(RefineTest, NoSingleMoveIsBetterThanTheResult) {
  std::mt19937 random(2);
  RefineOptions options;
  options.score_calls = 20000;  // fewer than there are cuts, and enough
  for (int trial = 0; trial < 20; ++trial) {
    const Balance best = refine(random_balance(random, 60, 6), noise, options);
    for (std::size_t j = 0; j + 1 < best.size(); ++j) {
      for (int64_t layers : {-8, -4, -2, -1, 1, 2, 4, 8}) {
        Balance moved = best;
        moved[j] += layers;
        moved[j + 1] -= layers;
        if (moved[j] >= 1 && moved[j + 1] >= 1) {
          ASSERT_GE(noise(moved), noise(best));
        }
      }
    }
  }
}

TEST(RefineTest, ComesFromAnywhereToAnEvenCut) {
  std::mt19937 random(3);
  RefineOptions options;
  options.score_calls = 20000;
  for (int trial = 0; trial < 100; ++trial) {
    const std::vector<double> costs = random_costs(random, 100);
    const Balance best = refine(
        random_balance(random, 100, 8),
        [&](const Balance& balance) { return squares(costs, balance); },
        options);
    const double sum = std::accumulate(costs.begin(), costs.end(), 0.0);
    // The smallest possible value if layers could be divided.
    EXPECT_LE(squares(costs, best), 1.01 * sum * sum / 8);
  }
}

TEST(RefineTest, LeavesStartsThatAreNotAllowed) {
  // Allows only cuts with a long first partition.
  const auto score = [](const Balance& balance) {
    return balance[0] < 15 ? kInfinity : static_cast<double>(balance[0]);
  };
  RefineOptions options;
  options.score_calls = 500;
  EXPECT_EQ(refine({1, 20, 20, 19}, score, options)[0], 15);
  const auto never = [](const Balance&) { return kInfinity; };
  EXPECT_THAT(refine({1, 20, 20, 19}, never, options),
              ElementsAre(1, 20, 20, 19));
}

TEST(RefineTest, RefusesWhatCannotBe) {
  const auto refine_error = [](const std::vector<Balance>& starts,
                               int64_t score_calls, double value) {
    RefineOptions options;
    options.score_calls = score_calls;
    return error_of([&] {
      refine(
          starts, [&](const Balance&) { return value; }, options);
    });
  };
  EXPECT_EQ(refine_error({{1, 2}, {2, 1}}, 0, 1), "no error");
  EXPECT_THAT(refine_error({}, 1, 1), HasSubstr("no balance"));
  EXPECT_THAT(refine_error({{1, 2}, {}}, 1, 1),
              HasSubstr("start 1 has no partitions"));
  EXPECT_THAT(refine_error({{1, 0, 2}}, 1, 1),
              HasSubstr("start 0 has 0 layers in partition 1"));
  EXPECT_THAT(refine_error({{1, 2}, {1, 3}}, 1, 1),
              HasSubstr("start 1 cuts 4 layers into 2 partitions, start 0 3"));
  EXPECT_THAT(refine_error({{1, 2}, {1, 1, 1}}, 1, 1),
              HasSubstr("start 1 cuts 3 layers into 3 partitions"));
  EXPECT_THAT(refine_error({{1, 2}}, -1, 1), HasSubstr("score_calls is -1"));
  EXPECT_THAT(refine_error({{1, 2}}, 1, std::nan("")),
              HasSubstr("the score of the balance [1, 2] is nan"));
}

}  // namespace
}  // namespace gpipe::balancing
