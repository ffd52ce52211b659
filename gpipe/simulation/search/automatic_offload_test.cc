// Tests that automatic_schedule() offloads where that saves time, or makes a
// schedule fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>
#include <stdexcept>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/simulation/search/automatic.h"
#include "gpipe/simulation/simulate.h"
#include "gpipe/testing/rounds.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::vector<int> kLine = {0, 1, 2, 3}, kV = {0, 1, 1, 0};

// Returns the costs of stages whose forwards take 1 s, and whose activations
// have 1 byte. A copy takes `copy` seconds.
Costs equal_stages(std::size_t stages, double copy) {
  Costs costs;
  costs.forward.assign(stages, 1);
  costs.backward.assign(stages, 2);
  costs.activation_bytes.assign(stages, 1);
  costs.host_bandwidth = 1 / copy;
  return costs;
}

AutomaticOptions limits(std::vector<double> bytes, bool offload = true) {
  AutomaticOptions options;
  options.memory_bytes = std::move(bytes);
  options.offload = offload;
  options.budget = 3000;
  return options;
}

std::ptrdiff_t count(const Schedule& schedule, ActionKind kind) {
  std::ptrdiff_t count = 0;
  for (const auto& actions : schedule.ranks) {
    count += std::count_if(actions.begin(), actions.end(),
                           [&](const Action& a) { return a.kind == kind; });
  }
  return count;
}

// Checks that `result` is a valid schedule within the limits, with the times
// that simulate() gives.
void expect_sound(const AutomaticSchedule& result, const Costs& costs,
                  const std::vector<double>& bytes) {
  validate(result.schedule);
  const Timeline again = simulate(result.schedule, costs);
  EXPECT_EQ(again.makespan, result.timeline.makespan);
  EXPECT_GE(again.makespan, result.lower_bound);
  for (std::size_t r = 0; r < bytes.size(); ++r) {
    EXPECT_LE(again.peak_bytes[r], bytes[r]) << "rank " << r;
  }
}

// 1F1B takes (m + p - 1)(f + b) seconds. Its rank 0 holds 4 cells, or 3 if the
// copies take less time than a forward.
TEST(AutomaticOffloadTest, TakesTheTimeOfNoLimitWhereCopiesAreFast) {
  Costs costs = equal_stages(4, 0.5);
  costs.recompute.assign(4, 1);
  costs.input_bytes.assign(4, 0.125);
  const std::vector<double> bytes(4, 3);
  const auto with = automatic_schedule(kLine, 8, costs, limits(bytes));
  expect_sound(with, costs, bytes);
  EXPECT_EQ(with.timeline.makespan, (8 + 4 - 1) * 3);
  EXPECT_GT(count(with.schedule, ActionKind::kOffload), 0);
  EXPECT_THAT(with.origin, HasSubstr("offload"));
  const auto without =
      automatic_schedule(kLine, 8, costs, limits(bytes, false));
  EXPECT_EQ(count(without.schedule, ActionKind::kOffload), 0);
  EXPECT_GT(without.timeline.makespan, with.timeline.makespan);
}

TEST(AutomaticOffloadTest, OffloadsNothingWhereItGainsNothing) {
  const auto copies = [](const Costs& costs, const AutomaticOptions& options) {
    const auto found = automatic_schedule(kLine, 6, costs, options);
    return count(found.schedule, ActionKind::kOffload);
  };
  const Costs costs = equal_stages(4, 0.5);
  EXPECT_GT(copies(costs, limits({3})), 0);
  EXPECT_EQ(copies(costs, limits({})), 0);
  EXPECT_EQ(copies(costs, limits({4})), 0);  // 1F1B fits
  EXPECT_EQ(copies(costs, limits({3}, /*offload=*/false)), 0);
  Costs unknown = costs;
  unknown.host_bandwidth = 0;
  EXPECT_EQ(copies(unknown, limits({3})), 0);
  EXPECT_EQ(copies(equal_stages(4, 1e6), limits({3})), 0);
}

// Stages 0 and 3 are on rank 0. While stages 1 and 2 work, the copy to the host
// makes room for stage 3.
TEST(AutomaticOffloadTest, FitsWhereNoOtherScheduleFits) {
  const Costs costs = equal_stages(4, 1);
  const std::vector<double> bytes = {1, 2};
  EXPECT_THAT([&] { automatic_schedule(kV, 3, costs, limits(bytes, false)); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("rank 0 may hold 1 bytes, and needs 2 at least")));
  const auto found = automatic_schedule(kV, 3, costs, limits(bytes));
  expect_sound(found, costs, bytes);
  // Recomputed, stage 0 would hold its input beside stage 3.
  Costs recomputes = costs;
  recomputes.recompute.assign(4, 1);
  recomputes.input_bytes.assign(4, 0.5);
  EXPECT_THROW(automatic_schedule(kV, 3, recomputes, limits(bytes, false)),
               std::invalid_argument);
  expect_sound(automatic_schedule(kV, 3, recomputes, limits(bytes)), recomputes,
               bytes);
}

TEST(AutomaticOffloadTest, SaysThatOffloadDoesNotHelp) {
  EXPECT_THAT(
      [] {
        automatic_schedule(kV, 3, equal_stages(4, 1), limits({0.5, 2}));
      },
      ThrowsMessage<std::invalid_argument>(
          HasSubstr("rank 0 may hold 0.5 bytes, and needs 2 at least, for its "
                    "parameters and one micro-batch; no schedule with offload "
                    "was found that fits: give it more memory")));
}

TEST(AutomaticOffloadTest, IsNeverSlowerThanWithout) {
  std::mt19937 random(1);
  const auto number = [&](int least, int most) {
    return least + static_cast<int>(random() % (most - least + 1));
  };
  const auto list = [&](std::size_t stages, int least, int most) {
    std::vector<double> list;
    for (std::size_t s = 0; s < stages; ++s)
      list.push_back(number(least, most));
    return list;
  };
  int shorter = 0, only = 0;
  for (int k = 0; k < testing::rounds(60, 600); ++k) {
    const std::vector<int>& place = k % 2 ? kLine : kV;
    const int m = number(1, 8);
    Costs costs;
    costs.forward = list(4, 1, 9);
    costs.backward_input = list(4, 1, 9);
    costs.backward_weight = list(4, 1, 9);
    costs.backward = costs.backward_input;
    for (std::size_t s = 0; s < 4; ++s) {
      costs.backward[s] += costs.backward_weight[s];
    }
    if (k % 3) costs.recompute = costs.forward;
    costs.resident_bytes = list(4, 0, 5);
    costs.activation_bytes = list(4, 1, 9);
    costs.input_bytes = list(4, 0, 3);
    if (k % 5 == 0) costs.offload_bytes.assign(4, 1);
    costs.host_bandwidth = number(1, 9);
    std::vector<double> bytes = list(k % 2 ? 4 : 2, 10, 30);
    AutomaticOptions options = limits(bytes, false);
    options.budget = 500;
    std::optional<double> without;
    try {
      without = automatic_schedule(place, m, costs, options).timeline.makespan;
    } catch (const std::invalid_argument&) {
    }
    options.offload = true;
    try {
      const auto with = automatic_schedule(place, m, costs, options);
      expect_sound(with, costs, bytes);
      EXPECT_LE(with.timeline.makespan, without.value_or(1e9));
      only += without ? 0 : 1;
      shorter += with.timeline.makespan < without.value_or(0) ? 1 : 0;
    } catch (const std::invalid_argument&) {
      EXPECT_FALSE(without.has_value());
    }
  }
  EXPECT_GE(shorter, 10);
  EXPECT_GE(only, 1);
}

}  // namespace
}  // namespace gpipe
