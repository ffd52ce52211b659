#include "balancing/planner/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "balancing/planner/stages.h"
#include "balancing/planner/testing.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

namespace gpipe::balancing::planner {
namespace {

using ::testing::ElementsAre;

TEST(BlocksTest, CountSharedTensorsAndSkipsOnce) {
  Problem problem = simple_problem({1, 2, 3}, 1, 1, {"1f1b"});
  Workload& workload = problem.workloads[0];
  workload.saved = {{100, {0, 1}}, {10, {1, 2}}, {1, {2}}};
  workload.saved_for_weights = {{100, {0, 1}}, {20, {1}}};
  workload.skips = {{0, 2, 1000}};
  const Blocks blocks(problem, workload);
  const auto block = [&](int64_t first, int64_t last) {
    GrowingBlock result(blocks, first);
    while (result.last() < last) result.extend();
    return result;
  };
  EXPECT_EQ(block(0, 3).saved(), 111);
  EXPECT_EQ(block(0, 1).saved(), 100);
  EXPECT_EQ(block(1, 2).saved(), 110);
  EXPECT_EQ(block(2, 3).saved(), 11);
  EXPECT_EQ(block(0, 2).for_weights(), 120);
  EXPECT_EQ(block(0, 1).for_weights(), 100);
  EXPECT_EQ(block(2, 3).for_weights(), 0);
  EXPECT_EQ(block(0, 3).incoming(), 0);
  EXPECT_EQ(block(1, 2).incoming(), 6);
  EXPECT_EQ(block(1, 3).incoming(), 1006);
  EXPECT_EQ(block(2, 3).incoming(), 1006);
  EXPECT_EQ(blocks.seconds(ActionKind::kForward, 1, 3), 5);
  EXPECT_EQ(blocks.seconds(ActionKind::kBackward, 1, 3), 10);
  EXPECT_EQ(blocks.resident(0, 2), 16);
}

TEST(StageTableTest, HasSpeedsAndLinks) {
  Problem problem = simple_problem({1, 2, 3, 4}, 2, 1, {"zbv"});
  problem.ranks[1].speed = 2;
  problem.links = {{}, {1, 0.5}, {2, 0.25}, {}};
  const Blocks blocks(problem, problem.workloads[0]);
  const StageTable table =
      stage_table(problem, blocks, {0, 1, 1, 0}, {1, 1, 1, 1});
  EXPECT_THAT(table.seconds.forward, ElementsAre(1, 1, 1.5, 4));
  EXPECT_THAT(table.seconds.backward_weight, ElementsAre(1, 1, 1.5, 4));
  EXPECT_THAT(table.wire, ElementsAre(0, 3, 0, 1.5));
  EXPECT_THAT(table.delay, ElementsAre(0, 1, 0, 2));
  EXPECT_THAT(table.wire_back, ElementsAre(0, 1.5, 0, 3));
  EXPECT_THAT(table.delay_back, ElementsAre(0, 2, 0, 1));
}

TEST(StageTableTest, CopiesSkipsBetweenRanksOnly) {
  Problem problem = simple_problem({1, 1, 1, 1}, 2, 1, {"zbv"});
  problem.links = {{0, 1}};
  problem.workloads[0].skips = {{0, 3, 100}, {1, 3, 7}};
  const Blocks blocks(problem, problem.workloads[0]);
  const StageTable table =
      stage_table(problem, blocks, {0, 1, 1, 0}, {1, 1, 1, 1});
  EXPECT_THAT(table.incoming, ElementsAre(0, 6, 6, 6 + 100 + 7));
  EXPECT_THAT(table.wire, ElementsAre(0, 6, 0, 6 + 7));
  EXPECT_THAT(table.wire_back, ElementsAre(0, 6, 0, 6 + 7));
}

TEST(EvaluatorTest, AddsTheSumsOfTheSlowestRank) {
  // Two ranks with two layers of 4 trained bytes and 3 s each.
  Problem problem = simple_problem({1, 1, 1, 1}, 2, 8, {"fill-drain"});
  problem.stages_per_rank = {1};
  problem.ranks[0].sum = {1, 0.5};
  problem.ranks[1].sum = {0, 0.25};
  const Blocks blocks(problem, problem.workloads[0]);
  Evaluator evaluator(problem, candidates(problem)[0], blocks);
  const double step = (8 + 1) * 6;
  EXPECT_EQ(evaluator.seconds({2, 2}), step + 1 + 8 * 0.5);
  EXPECT_EQ(evaluator.predict({2, 2}).sum_seconds, 1 + 8 * 0.5);
  EXPECT_EQ(evaluator.predict({1, 3}).sum_seconds, 3);
  // Its lower bound has them, too.
  EXPECT_EQ(evaluator.seconds({2, 2}, 5), step + 5);
}

TEST(EvaluatorTest, EqualsSimulateForAllSchedulesAndModes) {
  int seed = 0;
  for (const std::string& name : schedule_names()) {
    if (name == "forward-only") continue;
    for (const Recompute recompute :
         {Recompute(Checkpoint::kNever), Recompute(Checkpoint::kExceptLast),
          Recompute(Checkpoint::kAlways), kWhereNeeded}) {
      SCOPED_TRACE(name + ", " + to_string(recompute));
      Dice dice(static_cast<unsigned>(++seed));
      Problem problem;
      problem.workloads.push_back(random_workload(dice, 9, 7));
      problem.ranks.resize(3);
      problem.ranks[1].speed = 2;
      problem.links = {{0, 0.5}};
      Candidate candidate;
      candidate.schedule = name;
      candidate.stages_per_rank = fixed_stages_per_rank(name).value_or(3);
      candidate.recompute = recompute;
      const Blocks blocks(problem, problem.workloads[0]);
      Evaluator evaluator(problem, candidate, blocks);
      std::vector<int64_t> balance(3 * candidate.stages_per_rank, 1);
      balance[1] += 9 - static_cast<int64_t>(balance.size());

      if (recompute == kWhereNeeded) {
        // Just enough for the fullest rank if it recomputes all.
        for (Rank& rank : problem.ranks) {
          rank.memory_bytes = evaluator.largest_peak(balance);
        }
      }
      const Prediction prediction = evaluator.predict(balance);
      Costs costs = costs_of(prediction.stages);
      costs.bandwidth = 1 / problem.links[0].seconds_per_byte;
      const Timeline expected = simulate(prediction.schedule, costs);
      EXPECT_EQ(prediction.timeline.makespan, expected.makespan);
      EXPECT_EQ(evaluator.seconds(balance), expected.makespan);
      EXPECT_EQ(prediction.peak_bytes, expected.peak_bytes);
    }
  }
}

TEST(EvaluatorTest, IsInfiniteBeyondTheMemory) {
  Problem problem = simple_problem({1, 1}, 2, 4, {"1f1b"});
  const Blocks blocks(problem, problem.workloads[0]);
  const auto seconds = [&] {
    return Evaluator(problem, {"1f1b"}, blocks).seconds({1, 1});
  };
  problem.ranks[0].memory_bytes = 8 + 2 * 10;
  EXPECT_EQ(seconds(), (4 + 1) * 3);
  problem.ranks[0].memory_bytes = 8 + 2 * 10 - 1;
  EXPECT_EQ(seconds(), std::numeric_limits<double>::infinity());
}

TEST(EvaluatorTest, SharesCoresOfOneMachine) {
  Problem problem = simple_problem({1, 1}, 2, 4, {"fill-drain"});
  const Blocks blocks(problem, problem.workloads[0]);
  problem.workers = 1;
  Evaluator evaluator(problem, {"fill-drain"}, blocks);
  EXPECT_DOUBLE_EQ(evaluator.seconds({1, 1}), 4 * 2 * 3);
  EXPECT_DOUBLE_EQ(evaluator.predict({1, 1}).timeline.makespan, 4 * 2 * 3);
}

TEST(EvaluatorTest, StopsAtALowerBound) {
  const Problem problem = simple_problem({1, 3}, 2, 4, {"1f1b"});
  const Blocks blocks(problem, problem.workloads[0]);
  Evaluator evaluator(problem, {"1f1b"}, blocks);
  // Rank 1 works for 4 * 9 s, after 1 s and before 2 s of rank 0.
  EXPECT_EQ(evaluator.seconds({1, 1}, /*enough=*/20), 4 * 9 + 3);
  EXPECT_EQ(evaluator.simulations(), 0);
  EXPECT_EQ(evaluator.seconds({1, 1}, /*enough=*/40), 4 * 9 + 3);
  EXPECT_EQ(evaluator.simulations(), 1);
}

TEST(MostHeldTest, KeepsTheMomentsThatNoOtherOneCovers) {
  const std::vector<Action> actions =
      parse_schedule("0F0,0F1,2F0,2B0,0B1,0F2,0B2,0B0\n").ranks[0];
  // Two of stage 0 with one of stage 2.
  const auto moments = most_held(actions, {0, 2});
  ASSERT_EQ(moments.size(), 1);
  ASSERT_EQ(moments[0].size(), 2);
  EXPECT_EQ(moments[0][0].activation, 2);
  EXPECT_EQ(moments[0][1].activation, 1);
  EXPECT_EQ(moments[0][0].input + moments[0][1].input, 0);
}

TEST(MostHeldTest, CountsWhatAnInputPartLeavesForTheWeights) {
  const auto peak = [](double for_weights) {
    Problem problem = simple_problem({1}, 1, 2, {"zb-h1"});
    problem.workloads[0].saved_for_weights = {{for_weights, {0}}};
    const Blocks blocks(problem, problem.workloads[0]);
    const auto actions = parse_schedule("0F0,0F1,0I0,0I1,0W0,0W1\n").ranks[0];
    return peak_bytes(most_held(actions, {0}), {0},
                      stage_table(problem, blocks, {0}, {1}));
  };
  // 8 bytes for the parameter and its gradient. Each forward keeps 10 bytes.
  EXPECT_EQ(peak(3), 8 + 2 * 10);
  EXPECT_EQ(peak(10), 8 + 2 * 10);
  EXPECT_EQ(peak(15), 8 + 2 * 15);
}

}  // namespace
}  // namespace gpipe::balancing::planner
