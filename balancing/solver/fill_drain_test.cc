#include "balancing/solver/fill_drain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "balancing/solver/partition.h"
#include "balancing/solver/testing.h"

namespace gpipe::balancing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Costs = std::vector<double>;
using Balance = std::vector<int64_t>;

Costs added(const Costs& a, const Costs& b) {
  Costs sums;
  for (std::size_t k = 0; k < a.size(); ++k) sums.push_back(a[k] + b[k]);
  return sums;
}

// Returns the length of the schedule, computed cell by cell. A partition runs
// the forwards of all micro-batches, each after that of the partition before
// it, and then the backwards, each after that of the partition after it.
double simulated(const Costs& forward, const Costs& backward,
                 const Balance& balance, int64_t microbatches) {
  const std::size_t partitions = balance.size();
  Costs f(partitions), b(partitions);
  std::size_t layer = 0;
  for (std::size_t j = 0; j < partitions; ++j) {
    for (int64_t k = 0; k < balance[j]; ++k, ++layer) {
      f[j] += forward[layer];
      b[j] += backward[layer];
    }
  }
  Costs free(partitions, 0);  // when each partition is free
  for (int64_t i = 0; i < microbatches; ++i) {
    double arrives = 0;
    for (std::size_t j = 0; j < partitions; ++j) {
      arrives = free[j] = std::max(free[j], arrives) + f[j];
    }
  }
  for (int64_t i = 0; i < microbatches; ++i) {
    double arrives = 0;
    for (std::size_t j = partitions; j-- > 0;) {
      arrives = free[j] = std::max(free[j], arrives) + b[j];
    }
  }
  return free[0];
}

// Returns the minimized values in order of importance: the time, the largest
// sum of a partition, the squared sums, the squared lengths.
Costs objective(const Costs& forward, const Costs& backward,
                const Balance& balance, int64_t microbatches) {
  double largest = 0, squares = 0, lengths = 0;
  std::size_t layer = 0;
  for (int64_t length : balance) {
    double sum = 0;
    for (int64_t k = 0; k < length; ++k, ++layer) {
      sum += forward[layer] + backward[layer];
    }
    largest = std::max(largest, sum);
    squares += sum * sum;
    lengths += static_cast<double>(length * length);
  }
  return {fill_drain_time(forward, backward, balance, microbatches), largest,
          squares, lengths};
}

Costs best_objective(const Costs& forward, const Costs& backward,
                     int64_t partitions, int64_t microbatches) {
  Costs best(4, std::numeric_limits<double>::infinity());
  for_each_balance(static_cast<int64_t>(forward.size()), partitions,
                   [&](const Balance& balance) {
                     best = std::min(best, objective(forward, backward, balance,
                                                     microbatches));
                   });
  return best;
}

TEST(FillDrainTest, TimeIsThatOfTheSchedule) {
  std::mt19937 random(0);
  for (int trial = 0; trial < 2000; ++trial) {
    Costs forward(1 + random() % 8), backward(forward.size());
    for (double& cost : forward) cost = random() % 10;
    for (double& cost : backward) cost = random() % 20;
    const auto partitions = static_cast<int64_t>(1 + random() % forward.size());
    const auto microbatches = static_cast<int64_t>(1 + random() % 6);
    const Balance balance = balance_cost(backward, partitions);
    ASSERT_EQ(fill_drain_time(forward, backward, balance, microbatches),
              simulated(forward, backward, balance, microbatches));
  }
}

TEST(FillDrainTest, CutsBetterThanTheLargestSumAlone) {
  // If the slowest forward and the slowest backward are on different
  // partitions, the largest sum is not enough.
  const Costs forward = {5, 1, 1, 4}, backward = {1, 4, 3, 2};
  EXPECT_THAT(balance_cost(added(forward, backward), 3), ElementsAre(1, 2, 1));
  EXPECT_EQ(fill_drain_time(forward, backward, {1, 2, 1}, 8), 21 + 7 * 12);
  EXPECT_THAT(balance_fill_drain(forward, backward, 3, 8),
              ElementsAre(1, 1, 2));
  EXPECT_EQ(fill_drain_time(forward, backward, {1, 1, 2}, 8), 21 + 7 * 10);
}

TEST(FillDrainTest, NeedsTheLargestSumAloneWhereBackwardsAreProportional) {
  const Costs forward = {8, 11, 2, 1, 18, 5, 4, 11};
  const Costs backward = {16, 22, 4, 2, 36, 10, 8, 22};
  const Balance balance = balance_fill_drain(forward, backward, 4, 8);
  EXPECT_EQ(balance, balance_cost(forward, 4));
  EXPECT_EQ(fill_drain_time(forward, backward, balance, 8), 600);
}

TEST(FillDrainTest, AnyCutWillDoForOneMicrobatch) {
  const Costs forward = {5, 1, 1, 4}, backward = {1, 4, 3, 2};
  EXPECT_EQ(balance_fill_drain(forward, backward, 3, 1),
            balance_cost(added(forward, backward), 3));
}

TEST(FillDrainTest, MakesTheLastBlockLongerWhereAllElseIsEqual) {
  // The largest times are 3 + 4 or 4 + 3; the second chain is the mirrored
  // first.
  EXPECT_THAT(balance_fill_drain({3, 1, 2}, {2, 1, 3}, 2, 2),
              ElementsAre(1, 2));
  EXPECT_THAT(balance_fill_drain({2, 1, 3}, {3, 1, 2}, 2, 2),
              ElementsAre(1, 2));
}

TEST(FillDrainTest, TakesCostsOfAnyMagnitude) {
  const Costs large(6, 1e308), none(6, 0);
  for (int64_t microbatches : {1, 2}) {
    EXPECT_THAT(balance_fill_drain(large, large, 3, microbatches),
                ElementsAre(2, 2, 2));
    EXPECT_THAT(balance_fill_drain(none, none, 3, microbatches),
                ElementsAre(2, 2, 2));
    EXPECT_THAT(balance_fill_drain(none, Costs(6, 5e-324), 3, microbatches),
                ElementsAre(2, 2, 2));
  }
}

TEST(FillDrainTest, EqualsExhaustiveSearch) {
  std::mt19937 random(1);
  int better = 0;
  for (int trial = 0; trial < 10000; ++trial) {
    Costs forward(1 + random() % 9), backward(forward.size());
    const unsigned largest = 1 + random() % 12;
    for (double& cost : forward) {
      cost = random() % 8 == 0 ? 5 * largest : random() % largest;
    }
    for (double& cost : backward) {
      cost = random() % 8 == 0 ? 5 * largest : random() % (2 * largest);
    }
    const auto partitions = static_cast<int64_t>(
        1 + random() % std::min<std::size_t>(4, forward.size()));
    const auto microbatches = static_cast<int64_t>(1 + random() % 5);
    const Balance balance =
        balance_fill_drain(forward, backward, partitions, microbatches);
    ASSERT_EQ(objective(forward, backward, balance, microbatches),
              best_objective(forward, backward, partitions, microbatches))
        << ::testing::PrintToString(forward) << " and "
        << ::testing::PrintToString(backward) << " into " << partitions;
    const double time =
        fill_drain_time(forward, backward, balance, microbatches);
    const Balance plain = balance_cost(added(forward, backward), partitions);
    const double plain_time =
        fill_drain_time(forward, backward, plain, microbatches);
    ASSERT_LE(time, plain_time);
    if (time < plain_time) ++better;
  }
  // Otherwise the plain solver would have been enough.
  EXPECT_GT(better, 500);
}

TEST(FillDrainTest, EqualsExhaustiveSearchOverManyMagnitudes) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 10000; ++trial) {
    Costs forward(1 + random() % 9), backward(forward.size());
    for (double& cost : forward) cost = std::exp(random() % 1000 * 0.01 - 5);
    for (double& cost : backward) cost = std::exp(random() % 1000 * 0.01 - 5);
    const auto partitions = static_cast<int64_t>(
        1 + random() % std::min<std::size_t>(4, forward.size()));
    const auto microbatches = static_cast<int64_t>(2 + random() % 30);
    const double least =
        best_objective(forward, backward, partitions, microbatches)[0];
    ASSERT_NEAR(fill_drain_time(forward, backward,
                                balance_fill_drain(forward, backward,
                                                   partitions, microbatches),
                                microbatches),
                least, 1e-9 * least);
  }
}

TEST(FillDrainTest, RefusesWhatCannotBe) {
  const auto balance_error = [](const Costs& forward, const Costs& backward,
                                int64_t partitions, int64_t microbatches) {
    return error_of([&] {
      balance_fill_drain(forward, backward, partitions, microbatches);
    });
  };
  EXPECT_THAT(balance_error({1, 2}, {1}, 1, 1),
              HasSubstr("2 forward costs and 1 backward costs"));
  EXPECT_THAT(balance_error({1, -2}, {1, 2}, 1, 1),
              HasSubstr("the forward cost of layer 1 is -2"));
  EXPECT_THAT(balance_error({1, 2}, {std::nan(""), 2}, 1, 1),
              HasSubstr("the backward cost of layer 0 is nan"));
  EXPECT_THAT(balance_error({1, 2}, {1, 2}, 0, 1),
              HasSubstr("2 layers into 0 partitions"));
  EXPECT_THAT(balance_error({1, 2}, {1, 2}, 3, 1),
              HasSubstr("2 layers into 3 partitions"));
  EXPECT_THAT(balance_error({1, 2}, {1, 2}, 1, 0),
              HasSubstr("there are 0 micro-batches"));
}

TEST(FillDrainTest, RefusesBalancesThatDoNotFit) {
  const auto time_error = [](const Balance& balance) {
    return error_of([&] { fill_drain_time({1, 2, 3}, {1, 2, 3}, balance, 1); });
  };
  EXPECT_EQ(time_error({1, 2}), "no error");
  EXPECT_THAT(time_error({3, 0}), HasSubstr("partition 1 has 0 layers"));
  EXPECT_THAT(time_error({2, 2}), HasSubstr("partition 1 has 2 where 1 are"));
  EXPECT_THAT(time_error({1, 1}), HasSubstr("2 layers in all, and not 3"));
}

}  // namespace
}  // namespace gpipe::balancing
