#include "gpipe/simulation/action_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <set>
#include <stdexcept>

#include "gpipe/schedule/generators/fill_drain.h"

namespace gpipe::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ActionIndexTest, NumbersAreDenseAndDifferent) {
  const Schedule schedule = fill_drain(3, 5);
  const ActionIndex index(schedule.ranks);
  EXPECT_EQ(index.stages(), 3);
  EXPECT_EQ(index.size(), 3 * 5 * 2);
  std::set<std::size_t> numbers;
  for (const auto& actions : schedule.ranks) {
    for (const Action& action : actions) numbers.insert(index.find(action));
  }
  EXPECT_EQ(numbers.size(), 3 * 5 * 2);
  EXPECT_EQ(*numbers.rbegin(), 3 * 5 * 2 - 1);
}

TEST(ActionIndexTest, WhatCannotBeThereHasNone) {
  const ActionIndex index(fill_drain(3, 5).ranks);
  EXPECT_EQ(index.find({-1, ActionKind::kForward, 0}), ActionIndex::kNone);
  EXPECT_EQ(index.find({3, ActionKind::kBackward, 0}), ActionIndex::kNone);
  EXPECT_EQ(index.find({0, ActionKind::kRecompute, 0}), ActionIndex::kNone);
  EXPECT_EQ(index.find({1, ActionKind::kForward, -1}), ActionIndex::kNone);
  EXPECT_EQ(index.find({2, ActionKind::kBackward, 5}), ActionIndex::kNone);
}

TEST(ActionIndexTest, APartOfAScheduleKeepsItsNumbers) {
  const ActionIndex index(Schedule{{{{63, ActionKind::kBackward, 511}}}}.ranks);
  EXPECT_EQ(index.stages(), 64);
  EXPECT_LT(index.find({63, ActionKind::kBackward, 511}), index.size());
}

TEST(ActionIndexTest, NumbersWithGapsAreRefused) {
  constexpr int kMost = std::numeric_limits<int>::max();
  EXPECT_THAT(
      [] {
        ActionIndex(Schedule{{{{kMost, ActionKind::kForward, kMost}}}}.ranks);
      },
      ThrowsMessage<std::invalid_argument>(
          HasSubstr("1 actions has a stage 2147483647")));
}

}  // namespace
}  // namespace gpipe::internal
