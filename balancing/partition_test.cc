#include "balancing/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "balancing/planner/testing.h"

namespace gpipe::balancing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

using Costs = std::vector<double>;

std::vector<double> block_costs(const Costs& costs,
                                const std::vector<int64_t>& lengths) {
  std::vector<double> sums;
  auto at = costs.begin();
  for (int64_t length : lengths) {
    sums.push_back(std::accumulate(at, at + length, 0.0));
    at += length;
  }
  return sums;
}

// Returns the minimized values: the largest block, the squared block costs, the
// squared lengths.
std::vector<double> objective(const Costs& costs,
                              const std::vector<int64_t>& lengths) {
  const std::vector<double> blocks = block_costs(costs, lengths);
  const auto squares = [](const auto& values) {
    double sum = 0;
    for (double value : values) sum += value * value;
    return sum;
  };
  return {*std::ranges::max_element(blocks), squares(blocks), squares(lengths)};
}

// Returns the best objective of all cuts, by exhaustive search.
std::vector<double> best_objective(const Costs& costs, int64_t partitions) {
  std::vector<double> best(3, std::numeric_limits<double>::infinity());
  for_each_balance(static_cast<int64_t>(costs.size()), partitions,
                   [&](const std::vector<int64_t>& lengths) {
                     best = std::min(best, objective(costs, lengths));
                   });
  return best;
}

std::string cut_error(const Costs& costs, int64_t partitions) {
  return error_of([&] { balance_cost(costs, partitions); });
}

TEST(PartitionTest, CutsWhereTheLargestBlockIsSmallest) {
  EXPECT_THAT(balance_cost({1, 2, 3, 4, 5, 6}, 2), ElementsAre(4, 2));
  EXPECT_THAT(balance_cost({6, 5, 4, 3, 2, 1}, 2), ElementsAre(2, 4));
  EXPECT_THAT(balance_cost({42}, 1), ElementsAre(1));
  EXPECT_THAT(balance_cost({1, 2, 3}, 3), ElementsAre(1, 1, 1));
}

TEST(PartitionTest, EvensOutEqualCosts) {
  EXPECT_THAT(balance_cost(Costs(10, 1), 4), AllOf(Each(Ge(2)), Each(Le(3))));
  EXPECT_THAT(balance_cost(Costs(5, 1), 3), ElementsAre(1, 2, 2));
  EXPECT_THAT(balance_cost(Costs(5, 0.1), 3), ElementsAre(1, 2, 2));
}

TEST(PartitionTest, EvensOutLayersThatCostNothing) {
  EXPECT_THAT(balance_cost({0, 0}, 2), ElementsAre(1, 1));
  EXPECT_THAT(balance_cost(Costs(9, 0), 3), ElementsAre(3, 3, 3));
}

TEST(PartitionTest, EvensOutWhatIsLeftBesideAnUnavoidableBlock) {
  EXPECT_THAT(balance_cost({1, 1, 1, 1, 1, 1, 100}, 4),
              ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(balance_cost({1e16, 1, 1, 1, 1}, 3), ElementsAre(1, 2, 2));
}

TEST(PartitionTest, HandlesListsThatBlockPartitionDoesNot) {
  // torchgpipe's heuristic does not end on the first list and leaves a block
  // empty on the second.
  const Costs endless = {5, 1, 1, 1, 1, 1, 8, 1, 420, 504, 3};
  EXPECT_EQ(objective(endless, balance_cost(endless, 8)),
            best_objective(endless, 8));
  const Costs emptying = {1, 3, 1, 1, 5, 8, 1, 3, 3};
  EXPECT_EQ(objective(emptying, balance_cost(emptying, 5)),
            best_objective(emptying, 5));
}

TEST(PartitionTest, TakesCostsOfAnyMagnitude) {
  EXPECT_THAT(balance_cost(Costs(6, 1e308), 3), ElementsAre(2, 2, 2));
  EXPECT_THAT(balance_cost(Costs(6, 5e-324), 3), ElementsAre(2, 2, 2));
  EXPECT_THAT(balance_cost({1e308, 5e-324, 5e-324}, 2), ElementsAre(1, 2));
}

TEST(PartitionTest, EqualsExhaustiveSearch) {
  std::mt19937 random(0);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int trial = 0; trial < 10000; ++trial) {
    Costs costs(draw(1, 10));
    const int largest = draw(0, 12);
    for (double& cost : costs) {
      cost = draw(0, 7) == 0 ? 10 * largest : draw(0, largest);
    }
    const int64_t partitions = draw(1, static_cast<int>(costs.size()));
    const auto lengths = balance_cost(costs, partitions);
    ASSERT_EQ(objective(costs, lengths), best_objective(costs, partitions))
        << ::testing::PrintToString(costs) << " into " << partitions;
  }
}

TEST(PartitionTest, LeavesNoBlockEmpty) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 100000; ++trial) {
    Costs costs(1 + random() % 20);
    for (double& cost : costs) {
      // Costs over many orders of magnitude, some of them 0.
      cost = random() % 5 == 0 ? 0.0 : std::exp(random() % 1000 * 0.02 - 10);
    }
    const auto partitions = static_cast<int64_t>(1 + random() % costs.size());
    const auto lengths = balance_cost(costs, partitions);
    ASSERT_EQ(lengths.size(), partitions);
    ASSERT_THAT(lengths, Each(Ge(1)));
    ASSERT_EQ(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}),
              static_cast<int64_t>(costs.size()));
  }
}

// Returns whether `partitions` blocks of whole numbers up to `limit` are
// enough, in the simple way.
bool is_enough(const Costs& costs, int64_t partitions, double limit) {
  double block = 0;
  int64_t blocks = 1;
  for (double cost : costs) {
    if (cost > limit) return false;
    block += cost;
    if (block > limit) {
      block = cost;
      ++blocks;
    }
  }
  return blocks <= partitions;
}

TEST(PartitionTest, StaysExactWhereTooMuchIsLeftToEvenOut) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 300; ++trial) {
    Costs costs(1000 + random() % 2000);
    const unsigned largest = 1 + random() % 5;
    for (double& cost : costs) cost = random() % largest;
    for (auto left = random() % 4; left > 0; --left) {
      costs[random() % costs.size()] = 200 + random() % 500;
    }
    const auto partitions = static_cast<int64_t>(40 + random() % 400);
    const auto lengths = balance_cost(costs, partitions);
    ASSERT_EQ(lengths.size(), partitions);
    ASSERT_THAT(lengths, Each(Ge(1)));
    ASSERT_EQ(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}),
              static_cast<int64_t>(costs.size()));
    const std::vector<double> blocks = block_costs(costs, lengths);
    const double limit = *std::ranges::max_element(blocks);
    ASSERT_TRUE(is_enough(costs, partitions, limit));
    ASSERT_FALSE(is_enough(costs, partitions, limit - 1));
  }
}

TEST(PartitionTest, IsAboutEvenWhereTooMuchIsLeftToEvenOut) {
  // 63 blocks for the 999 layers beside the large one: a share is 15.9.
  for (std::size_t large : {0, 300, 999}) {
    Costs costs(1000, 1);
    costs[large] = 500;
    std::vector<double> blocks = block_costs(costs, balance_cost(costs, 64));
    std::ranges::sort(blocks);
    EXPECT_EQ(blocks.back(), 500);
    blocks.pop_back();
    EXPECT_THAT(blocks, Each(AllOf(Ge(12), Le(18)))) << large;
  }
  EXPECT_THAT(balance_cost(Costs(100000, 0), 1000), Each(100));
  EXPECT_THAT(balance_cost(Costs(100000, 0.1), 1000), Each(100));
}

TEST(PartitionTest, TellsTheLargestBlock) {
  EXPECT_EQ(bottleneck({1, 2, 3, 4}, {1, 2, 1}), 5);
  EXPECT_THAT(error_of([] {
                bottleneck({1, 2}, {1, 2});
              }),
              HasSubstr("more than the 2 layers"));
}

TEST(PartitionTest, RefusesPartitionsThatCannotBe) {
  EXPECT_THAT(cut_error({1, 2}, 0), HasSubstr("2 layers into 0 partitions"));
  EXPECT_THAT(cut_error({1, 2}, -1), HasSubstr("2 layers into -1 partitions"));
  EXPECT_THAT(cut_error({}, 1), HasSubstr("0 layers into 1 partitions"));
  EXPECT_THAT(cut_error({42}, 2), HasSubstr("1 layers into 2 partitions"));
}

TEST(PartitionTest, RefusesCostsThatAreNone) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(cut_error({1, -2}, 1), HasSubstr("layer 1 is -2"));
  EXPECT_THAT(cut_error({infinity}, 1), HasSubstr("layer 0 is inf"));
  EXPECT_THAT(cut_error({1, 2, std::nan("")}, 1), HasSubstr("layer 2 is nan"));
}

}  // namespace
}  // namespace gpipe::balancing
