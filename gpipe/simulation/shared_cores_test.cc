#include "gpipe/simulation/shared_cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

#include "gpipe/schedule/generators/fill_drain.h"
#include "gpipe/schedule/generators/named.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/simulation/simulate.h"
#include "gpipe/simulation/timeline_testing.h"

namespace gpipe {
namespace {

TEST(SharedCoresTest, OneCoreDoesAllTheWorkOneAfterTheOther) {
  const auto timeline =
      simulate_on_cores(fill_drain(4, 8), equal_costs(4, 1, 2), 1);
  EXPECT_NEAR(timeline.makespan, 4 * 8 * 3, 1e-9);
}

TEST(SharedCoresTest, WithACoreForEachItIsSimulate) {
  const Schedule schedule = fill_drain(3, 5);
  const Costs costs = equal_costs(3, 1, 2);
  EXPECT_EQ(simulate_on_cores(schedule, costs, 3).makespan,
            simulate(schedule, costs).makespan);
  EXPECT_EQ(
      simulate_on_cores(schedule, costs, 1, {false, false, true}).makespan,
      simulate(schedule, costs).makespan);
}

TEST(SharedCoresTest, RanksThatWorkAtATimeShareEqually) {
  // With one micro-batch, only one of the two ranks works at a time.
  EXPECT_EQ(
      simulate_on_cores(fill_drain(2, 1), equal_costs(2, 1, 1), 1).makespan, 4);
  // Two micro-batches on one core: 0F0 runs from 0 to 1, then 0F1 and 1F0 share
  // the core until 3, then 1F1 runs until 4.
  const auto timeline =
      simulate_on_cores(select(fill_drain(2, 2),
                               [](const Action& action) {
                                 return action.kind == ActionKind::kForward;
                               }),
                        equal_costs(2, 1, 1), 1);
  EXPECT_EQ(timeline.ranks[0][1].start, 1);
  EXPECT_EQ(timeline.ranks[0][1].end, 3);
  EXPECT_EQ(timeline.ranks[1][0].start, 1);
  EXPECT_EQ(timeline.ranks[1][0].end, 3);
  EXPECT_EQ(timeline.makespan, 4);
}

TEST(SharedCoresTest, RanksWithADeviceOfTheirOwnTakeNoCore) {
  // The rank in the middle has its own device and uses no core, as a copy
  // would.
  const Costs costs = equal_costs(3, 1, 1);
  const auto timeline =
      simulate_on_cores(fill_drain(3, 6), costs, 2, {true, false, true});
  EXPECT_EQ(timeline.makespan, simulate(fill_drain(3, 6), costs).makespan);
}

TEST(SharedCoresTest, IsBetweenTheBoundsAndFallsWithMoreCores) {
  std::mt19937 random(0);
  std::uniform_int_distribution<int> small(1, 6);
  std::uniform_real_distribution<double> cost(0, 2);
  for (int k = 0; k < 500; ++k) {
    const auto names = schedule_names();
    const std::string name = names[random() % names.size()];
    const int per_rank = fixed_stages_per_rank(name).value_or(2);
    const int ranks = small(random);
    const Schedule schedule =
        named_schedule(name, ranks, 2 * ranks + small(random), per_rank);
    Costs costs;
    for (int s = 0; s < ranks * per_rank; ++s) {
      costs.forward.push_back(cost(random));
      costs.backward_input.push_back(cost(random));
      costs.backward_weight.push_back(cost(random));
      costs.backward.push_back(costs.backward_input.back() +
                               costs.backward_weight.back());
    }
    const Timeline alone = simulate(schedule, costs);
    double work = 0;
    for (const double idle : alone.idle) work += alone.makespan - idle;
    for (int cores = 1; cores < ranks; ++cores) {
      const double shared = simulate_on_cores(schedule, costs, cores).makespan;
      if (name != "dualpipe-v") {  // only simulate() runs its pairs as blocks
        EXPECT_GE(shared, alone.makespan * (1 - 1e-9)) << name;
      }
      EXPECT_GE(shared, work / cores * (1 - 1e-9)) << name;
      EXPECT_LE(shared, (work / cores + alone.makespan) * (1 + 1e-9)) << name;
    }
  }
}

TEST(SharedCoresTest, RefusesWhatItDoesNotConsider) {
  Costs costs = equal_costs(2, 1, 1);
  EXPECT_THROW(simulate_on_cores(fill_drain(2, 2), costs, 0),
               std::invalid_argument);
  EXPECT_THROW(simulate_on_cores(fill_drain(2, 2), costs, 1, {true}),
               std::invalid_argument);
  costs.latency = 1;
  EXPECT_THROW(simulate_on_cores(fill_drain(2, 2), costs, 1),
               std::invalid_argument);
}

}  // namespace
}  // namespace gpipe
