#include "gpipe/simulation/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/schedule/fill_drain.h"
#include "gpipe/schedule/transform.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Costs equal_costs(int stages, double forward, double backward) {
  Costs costs;
  costs.forward.assign(stages, forward);
  costs.backward.assign(stages, backward);
  return costs;
}

// (m + n - 1)(f + b), of which each rank is idle for (n - 1)(f + b).
TEST(SimulateTest, GivesTheClosedFormOfFillDrain) {
  for (const int n : {1, 2, 4, 7}) {
    for (const int m : {1, 2, 8, 31}) {
      const Timeline timeline =
          simulate(fill_drain(n, m), equal_costs(n, 2, 5));
      EXPECT_EQ(timeline.makespan, (m + n - 1) * 7);
      EXPECT_THAT(timeline.idle, Each((n - 1) * 7));
      EXPECT_THAT(timeline.peak_in_flight, Each(m));
      EXPECT_DOUBLE_EQ(timeline.bubble_fraction, (n - 1.0) / (m + n - 1));
    }
  }
}

// Sum of all stages + (m - 1)(largest forward + largest backward).
TEST(SimulateTest, GivesTheProportionateFlowShopOfUnequalStages) {
  std::mt19937 random(0);
  std::uniform_int_distribution<int> seconds(0, 9), sizes(1, 6);
  for (int k = 0; k < 1000; ++k) {
    const int n = sizes(random), m = sizes(random);
    Costs costs = equal_costs(n, 0, 0);
    double sum = 0, forward = 0, backward = 0;
    for (int stage = 0; stage < n; ++stage) {
      costs.forward[stage] = seconds(random);
      costs.backward[stage] = seconds(random);
      sum += costs.forward[stage] + costs.backward[stage];
      forward = std::max(forward, costs.forward[stage]);
      backward = std::max(backward, costs.backward[stage]);
    }
    EXPECT_EQ(simulate(fill_drain(n, m), costs).makespan,
              sum + (m - 1) * (forward + backward));
  }
}

TEST(SimulateTest, RecomputesWhileItWaits) {
  Costs costs = equal_costs(2, 1, 2);
  costs.recompute = {1, 1};
  const auto schedule =
      with_recompute(fill_drain(2, 2), [](int) { return true; });
  // 0F0 0F1 . 0R1 . . | 1F0 1F1 1R1 1B1 1R0 1B0: stage 0's first recompute is
  // hidden, its second one is not.
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_EQ(timeline.ranks[0][2].action, (Action{0, Kind::kRecompute, 1}));
  EXPECT_EQ(timeline.ranks[0][2].start, 2);
  EXPECT_EQ(timeline.ranks[0][3].start, 6);
  EXPECT_EQ(timeline.makespan, 11);
  EXPECT_THAT(timeline.idle, ElementsAre(3, 3));
}

TEST(SimulateTest, WaitsForWhatComesFromOtherRanks) {
  Costs costs = equal_costs(3, 1, 1);
  costs.latency = 0.5;
  EXPECT_EQ(simulate(fill_drain(3, 1), costs).makespan, 6 + 4 * 0.5);
  // All stages on one rank: nothing is sent.
  const Schedule one = {{{{0, Kind::kForward, 0},
                          {1, Kind::kForward, 0},
                          {1, Kind::kBackward, 0},
                          {0, Kind::kBackward, 0}}}};
  EXPECT_EQ(simulate(one, costs).makespan, 4);
}

TEST(SimulateTest, RunsBackwardsInTwoParts) {
  const Schedule schedule = {{{{0, Kind::kForward, 0},
                               {0, Kind::kForward, 1},
                               {0, Kind::kBackwardInput, 0},
                               {0, Kind::kBackwardInput, 1},
                               {0, Kind::kBackwardWeight, 0},
                               {0, Kind::kBackwardWeight, 1}}}};
  Costs costs;
  costs.forward = {1};
  costs.backward_input = {2};
  costs.backward_weight = {4};
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_EQ(timeline.makespan, 14);
  EXPECT_THAT(timeline.peak_in_flight, ElementsAre(2));
}

TEST(SimulateTest, TakesNoTimeForNothing) {
  const Timeline timeline = simulate(Schedule{{{}, {}}}, Costs());
  EXPECT_EQ(timeline.makespan, 0);
  EXPECT_EQ(timeline.bubble_fraction, 0);
  EXPECT_THAT(timeline.idle, ElementsAre(0, 0));
}

auto refuses(const std::string& a, const std::string& b) {
  return ThrowsMessage<std::invalid_argument>(
      AllOf(HasSubstr(a), HasSubstr(b)));
}

TEST(SimulateTest, NamesWhatCannotBe) {
  const Costs costs = equal_costs(2, 1, 1);
  const Schedule stuck = {{{{0, Kind::kBackward, 0}, {0, Kind::kForward, 0}}}};
  EXPECT_THAT([&] { simulate(stuck, costs); }, refuses("0B0", "never ends"));
  const Schedule twice = {{{{0, Kind::kForward, 0}}, {{0, Kind::kForward, 0}}}};
  EXPECT_THAT([&] { simulate(twice, costs); }, refuses("0F0", "twice"));
  const Schedule negative = {{{{-1, Kind::kForward, 0}}}};
  EXPECT_THAT([&] { simulate(negative, costs); }, refuses("-1", "from 0"));
  EXPECT_THAT([&] { simulate(fill_drain(3, 1), costs); },
              refuses("no forward cost of stage 2", "2F0"));
  for (const double value : {-1.0, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
    Costs bad = costs;
    bad.backward[1] = value;
    EXPECT_THAT([&] { simulate(fill_drain(2, 1), bad); },
                refuses("backward cost of stage 1", "not negative"));
    bad = costs;
    bad.latency = value;
    EXPECT_THAT([&] { simulate(fill_drain(2, 1), bad); },
                refuses("latency", "not negative"));
  }
}

}  // namespace
}  // namespace gpipe
