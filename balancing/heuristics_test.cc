#include "balancing/heuristics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "balancing/solver/partition.h"

namespace gpipe::balancing {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::Gt;
using ::testing::SizeIs;

// Expects that no heuristic has a smaller recorded block than the exact cut.
void expect_never_worse(const std::vector<RecordedCase>& cases) {
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const RecordedCase& one = cases[i];
    SCOPED_TRACE(testing::Message() << one.set << ", case " << i);
    const auto lengths = balance_cost(one.costs, one.partitions);
    ASSERT_THAT(lengths, SizeIs(one.partitions));
    ASSERT_THAT(lengths, Each(Gt(0)));
    ASSERT_EQ(std::accumulate(lengths.begin(), lengths.end(), std::size_t{0}),
              one.costs.size());
    for (std::size_t j = 0; j < kHeuristics.size(); ++j) {
      if (one.bottlenecks[j] < 0) continue;  // a code
      EXPECT_LE(bottleneck(one.costs, lengths), one.bottlenecks[j])
          << kHeuristics[j];
    }
  }
}

// A record that belongs to other costs would have a largest block below the
// mean block or below the largest layer.
void expect_possible(const std::vector<RecordedCase>& cases) {
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const RecordedCase& one = cases[i];
    SCOPED_TRACE(testing::Message() << one.set << ", case " << i);
    const double sum = std::accumulate(one.costs.begin(), one.costs.end(), 0.0);
    for (int64_t recorded : one.bottlenecks) {
      if (recorded < 0) {
        EXPECT_THAT(recorded, AnyOf(kDidNotEnd, kEmptyBlock));
        continue;
      }
      EXPECT_GE(recorded * one.partitions, sum);
      EXPECT_GE(recorded,
                *std::max_element(one.costs.begin(), one.costs.end()));
    }
  }
}

TEST(Heuristics, ProfilesAreThoseOfTheModels) {
  const auto cases = recorded_profiles();
  ASSERT_THAT(cases, SizeIs(9));
  for (const RecordedCase& one : cases) {
    EXPECT_THAT(one.costs, SizeIs(one.set == "ResNet-101"    ? 370
                                  : one.set == "AmoebaNet-D" ? 24
                                                             : 241));
  }
  expect_possible(cases);
}

TEST(Heuristics, RandomListsAreThoseThatTheHeuristicsWereGiven) {
  const auto cases = recorded_random();
  ASSERT_THAT(cases, SizeIs(10000));
  EXPECT_EQ(checksum(cases), kRandomChecksum);
  expect_possible(cases);
}

TEST(BalanceCost, IsNeverWorseOnProfiles) {
  expect_never_worse(recorded_profiles());
}

TEST(BalanceCost, IsNeverWorseOnRandomLists) {
  expect_never_worse(recorded_random());
}

}  // namespace
}  // namespace gpipe::balancing
