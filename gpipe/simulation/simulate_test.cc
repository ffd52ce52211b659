#include "gpipe/simulation/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/schedule/generators/fill_drain.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/simulation/timeline_testing.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The makespan is (m + n - 1)(f + b), of which each rank is idle for
// (n - 1)(f + b).
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

// The makespan is the sum over all stages plus
// (m - 1)(largest forward + largest backward).
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
  // Rank 0 runs 0R1 while it waits for the gradient. 0R0 is not hidden.
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_EQ(timeline.ranks[0][2].action,
            (Action{0, ActionKind::kRecompute, 1}));
  EXPECT_EQ(timeline.ranks[0][2].start, 2);
  EXPECT_EQ(timeline.ranks[0][3].start, 6);
  EXPECT_EQ(timeline.makespan, 11);
  EXPECT_THAT(timeline.idle, ElementsAre(3, 3));
}

TEST(SimulateTest, WaitsForWhatComesFromOtherRanks) {
  Costs costs = equal_costs(3, 1, 1);
  costs.latency = 0.5;
  EXPECT_EQ(simulate(fill_drain(3, 1), costs).makespan, 6 + 4 * 0.5);
  // If all stages are on one rank, there are no copies.
  const Schedule one = {{{{0, ActionKind::kForward, 0},
                          {1, ActionKind::kForward, 0},
                          {1, ActionKind::kBackward, 0},
                          {0, ActionKind::kBackward, 0}}}};
  EXPECT_EQ(simulate(one, costs).makespan, 4);
}

TEST(SimulateTest, RunsBackwardsInTwoParts) {
  const Schedule schedule = {{{{0, ActionKind::kForward, 0},
                               {0, ActionKind::kForward, 1},
                               {0, ActionKind::kBackwardInput, 0},
                               {0, ActionKind::kBackwardInput, 1},
                               {0, ActionKind::kBackwardWeight, 0},
                               {0, ActionKind::kBackwardWeight, 1}}}};
  Costs costs;
  costs.forward = {1};
  costs.backward_input = {2};
  costs.backward_weight = {4};
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_EQ(timeline.makespan, 14);
  EXPECT_THAT(timeline.peak_in_flight, ElementsAre(2));
}

// The makespan is (m + n - 1)(f + b) + m r if R runs while the rank waits, and
// (m + n - 1)(f + r + b) if R is in a block with its backward.
TEST(SimulateTest, ARecomputeInABlockWaitsForTheGradient) {
  for (const int n : {1, 2, 5}) {
    for (const int m : {1, 2, 9}) {
      Costs costs = equal_costs(n, 2, 5);
      costs.recompute.assign(n, 2);
      Schedule schedule =
          with_recompute(fill_drain(n, m), [](int) { return true; });
      EXPECT_EQ(simulate(schedule, costs).makespan, (m + n - 1) * 7 + m * 2);
      for (auto& actions : schedule.ranks) {
        for (Action& action : actions) {
          action.fused_with_next = action.kind == ActionKind::kRecompute;
        }
      }
      const Timeline late = simulate(schedule, costs);
      EXPECT_EQ(late.makespan, (m + n - 1) * 9);
      EXPECT_THAT(late.idle, Each((n - 1) * 9));
    }
  }
}

Action paired(Action action) {
  action.fused_with_next = true;
  return action;
}

TEST(SimulateTest, AnOverlappedPairHidesAPartOfTheShorterAction) {
  const Action f0 = {0, ActionKind::kForward, 0},
               f1 = {0, ActionKind::kForward, 1},
               b0 = {0, ActionKind::kBackward, 0},
               b1 = {0, ActionKind::kBackward, 1};
  Costs costs = equal_costs(1, 2, 3);
  for (const double overlap : {0.0, 0.5, 1.0}) {
    costs.overlap = overlap;
    for (const Schedule& schedule : {Schedule{{{f0, paired(f1), b0, b1}}},
                                     Schedule{{{f0, paired(b0), f1, b1}}}}) {
      const Timeline timeline = simulate(schedule, costs);
      const double end = 7 - 2 * overlap;
      for (const int k : {1, 2}) {
        EXPECT_EQ(timeline.ranks[0][k].start, 2);
        EXPECT_EQ(timeline.ranks[0][k].end, end);
      }
      EXPECT_EQ(timeline.makespan, end + 3);
      EXPECT_THAT(timeline.idle, ElementsAre(0));
      EXPECT_THAT(timeline.peak_in_flight, ElementsAre(2));
    }
  }
}

TEST(SimulateTest, APairBeginsWhenWhatBothNeedIsThere) {
  const Schedule schedule = {
      {{{0, ActionKind::kForward, 0},
        {0, ActionKind::kForward, 1, /*fused_with_next=*/true},
        {0, ActionKind::kBackward, 0},
        {0, ActionKind::kBackward, 1}},
       {{1, ActionKind::kForward, 0},
        {1, ActionKind::kBackward, 0},
        {1, ActionKind::kForward, 1},
        {1, ActionKind::kBackward, 1}}}};
  // Rank 0: 0F0 . . . 0F1&0B0 . . . 0B1. Rank 1: . 1F0 1B0 . . . 1F1 1B1.
  const Timeline timeline = simulate(schedule, equal_costs(2, 1, 2));
  EXPECT_EQ(timeline.ranks[0][1].start, 4);
  EXPECT_EQ(timeline.ranks[0][2].end, 7);
  EXPECT_EQ(timeline.ranks[1][2].start, 7);
  EXPECT_EQ(timeline.makespan, 12);
  EXPECT_THAT(timeline.idle, ElementsAre(6, 6));
}

TEST(SimulateTest, CopiesOfALinkGoOneAfterTheOther) {
  Costs costs = equal_costs(2, 1, 1);
  costs.latency = 0.5;
  costs.bandwidth = 5;
  costs.boundary_bytes = {10};
  const Timeline timeline = simulate(fill_drain(2, 2), costs);
  ASSERT_EQ(timeline.transfers.size(), 4);
  const auto expect = [](const Transfer& transfer, const std::string& action,
                         int from, double start, double sent, double end) {
    EXPECT_EQ(to_string(transfer.action), action);
    EXPECT_EQ(transfer.from, from);
    EXPECT_EQ(transfer.to, 1 - from);
    EXPECT_EQ(transfer.start, start) << action;
    EXPECT_EQ(transfer.sent, sent) << action;
    EXPECT_EQ(transfer.end, end) << action;
  };
  expect(timeline.transfers[0], "0F0", 0, 1, 3, 3.5);
  expect(timeline.transfers[1], "0F1", 0, 3, 5, 5.5);  // made at 2
  expect(timeline.transfers[2], "1B1", 1, 7.5, 9.5, 10);
  expect(timeline.transfers[3], "1B0", 1, 9.5, 11.5, 12);  // made at 8.5
  EXPECT_EQ(timeline.makespan, 13);

  // With unlimited bandwidth, copies do not wait for each other.
  costs.bandwidth = 0;
  EXPECT_EQ(simulate(fill_drain(2, 2), costs).makespan, 7);
}

// Stages 0 and 2 are on rank 0, stage 1 is on rank 1. The outputs of 2B0 and
// 0F1 are both copied from rank 0 to rank 1.
TEST(SimulateTest, ActivationsAndGradientsShareALink) {
  const Schedule schedule = {
      {{{2, ActionKind::kForward, 0},
        {2, ActionKind::kBackward, 0},
        {0, ActionKind::kForward, 1}},
       {{1, ActionKind::kBackward, 0}, {1, ActionKind::kForward, 1}}}};
  Costs costs = equal_costs(3, 1, 1);
  costs.bandwidth = 1;
  costs.boundary_bytes = {2, 3};
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_EQ(timeline.ranks[1][0].start, 2 + 3);
  EXPECT_EQ(timeline.ranks[1][1].start, 2 + 3 + 2);  // made at 3
}

TEST(SimulateTest, NothingIsSentToAStageThatIsNotThere) {
  Costs costs = equal_costs(2, 1, 1);
  costs.latency = 1;
  const Schedule forwards = {
      {{{0, ActionKind::kForward, 0}, {0, ActionKind::kForward, 1}},
       {{1, ActionKind::kForward, 1}}}};
  const Timeline timeline = simulate(forwards, costs);
  ASSERT_EQ(timeline.transfers.size(), 1);
  EXPECT_EQ(to_string(timeline.transfers[0].action), "0F1");
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
  const auto refuse = [&](const std::vector<std::vector<Action>>& ranks,
                          const std::string& a, const std::string& b) {
    EXPECT_THAT([&] { simulate(Schedule{ranks}, costs); }, refuses(a, b));
  };
  const Action f0 = {0, ActionKind::kForward, 0},
               b0 = {0, ActionKind::kBackward, 0};
  refuse({{b0, f0}}, "0B0 of rank 0 waits for 0F0", "never ends");
  refuse({{f0}, {f0}}, "0F0", "twice, on rank 0 and on rank 1");
  refuse({{f0, f0}}, "0F0", "twice");
  refuse({{{-1, ActionKind::kForward, 0}}}, "-1", "from 0");
  refuse({{{0, ActionKind::kForward, -2}}}, "-2", "from 0");
  refuse({{f0}, {b0}}, "stage 0 is on rank 0", "0B0, on rank 1");
  refuse({{{0, ActionKind::kForward, 2000000000}}}, "micro-batch 2000000000",
         "without gaps");
}

TEST(SimulateTest, NamesBlocksThatCannotBe) {
  Costs costs = equal_costs(2, 1, 1);
  costs.recompute = {1, 1};
  const auto refuse = [&](const std::vector<Action>& actions,
                          const std::string& a, const std::string& b) {
    EXPECT_THAT([&] { simulate(Schedule{{actions}}, costs); }, refuses(a, b));
  };
  const Action f0 = {0, ActionKind::kForward, 0},
               f1 = {0, ActionKind::kForward, 1},
               b0 = {0, ActionKind::kBackward, 0},
               b1 = {0, ActionKind::kBackward, 1},
               r0 = {0, ActionKind::kRecompute, 0};
  refuse({paired(f0)}, "0F0 of rank 0", "with nothing");
  refuse({paired(f0), f1}, "0F0 of rank 0", "with 0F1");
  refuse({f0, f1, paired(r0), b1}, "0R0 of rank 0", "with 0B1");
  refuse({f0, f1, paired(b0), b1}, "0B0 of rank 0", "with 0B1");
  refuse({f0, f1, paired(b0), paired({1, ActionKind::kForward, 0}), b1},
         "0B0 of rank 0", "with 1F0");
  // A backward cannot be in a block with its own forward.
  refuse({paired(f0), b0}, "0B0 of rank 0 waits for 0F0", "never ends");
}

TEST(SimulateTest, NamesCostsThatAreMissing) {
  Costs costs = equal_costs(2, 1, 1);
  EXPECT_THAT([&] { simulate(fill_drain(3, 1), costs); },
              refuses("no forward cost of stage 2", "2F0"));
  const auto recomputing =
      with_recompute(fill_drain(2, 1), [](int) { return true; });
  costs.recompute.clear();
  EXPECT_THAT([&] { simulate(recomputing, costs); },
              refuses("no recompute cost of stage 0", "0R0"));
  costs.bandwidth = 1;
  EXPECT_THAT([&] { simulate(fill_drain(2, 1), costs); },
              refuses("no boundary_bytes cost of stage 0", "0 is unlimited"));
  costs.boundary_bytes = {1};
  costs.activation_bytes = {1};
  EXPECT_THAT([&] { simulate(fill_drain(2, 1), costs); },
              refuses("no activation_bytes cost of stage 1", "none at all"));
}

}  // namespace
}  // namespace gpipe
