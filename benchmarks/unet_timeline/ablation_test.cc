#include "benchmarks/unet_timeline/ablation.h"

#include <gtest/gtest.h>

#include <set>

namespace gpipe::benchmarks {
namespace {

Costs equal_stages(std::size_t stages) {
  Costs costs;
  costs.forward.assign(stages, 1);
  costs.backward.assign(stages, 2);
  costs.recompute.assign(stages, 1);
  costs.boundary_bytes.assign(stages - 1, 10);
  costs.latency = 0.25;
  costs.bandwidth = 40;
  return costs;
}

std::vector<int> backwards(const std::vector<Action>& actions) {
  std::vector<int> microbatches;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kBackward) {
      microbatches.push_back(action.microbatch);
    }
  }
  return microbatches;
}

TEST(AblatedSchedule, IsGPipesWithAllOn) {
  const auto expected =
      with_recompute(fill_drain(3, 4), [](int i) { return i < 3; });
  EXPECT_EQ(ablated_schedule(3, 4, 3, {}, 0).ranks, expected.ranks);
}

TEST(AblatedSchedule, WithoutOrderHasEveryBackwardOnceInAnOrderPerRank) {
  Mechanisms mechanisms;
  mechanisms.ordered_backward = false;
  const Schedule schedule = ablated_schedule(4, 8, 7, mechanisms, 1);
  EXPECT_NO_THROW(validate(schedule));
  std::set<std::vector<int>> orders;
  for (const auto& actions : schedule.ranks) {
    orders.insert(backwards(actions));
    const auto order = backwards(actions);
    EXPECT_EQ(std::set<int>(order.begin(), order.end()).size(), 8u);
  }
  EXPECT_EQ(orders.size(), 4u);
  EXPECT_EQ(ablated_schedule(4, 8, 7, mechanisms, 1).ranks, schedule.ranks);
}

TEST(AblatedSchedule, LateRecomputesWaitForTheGradient) {
  // Late recomputes delay each rank but the last by one recompute.
  const Costs costs = [] {
    Costs c = equal_stages(4);
    c.latency = c.bandwidth = 0;
    return c;
  }();
  Mechanisms late;
  late.early_recompute = false;
  const double early_end =
      simulate(ablated_schedule(4, 8, 8, {}, 0), costs).makespan;
  const double late_end =
      simulate(ablated_schedule(4, 8, 8, late, 0), costs).makespan;
  EXPECT_DOUBLE_EQ(early_end, (8 + 3) * 3 + 8);
  EXPECT_DOUBLE_EQ(late_end, (8 + 3) * 4);
}

TEST(WithCopiesInTurn, GivesTheTimeOfACopyToBothOfItsEnds) {
  const Costs costs = with_copies_in_turn(equal_stages(3));
  // A copy takes 0.25 s + 10 / 40 s. The middle stage has two boundaries.
  EXPECT_EQ(costs.forward, (std::vector<double>{1.5, 2, 1.5}));
  EXPECT_EQ(costs.backward, (std::vector<double>{2.5, 3, 2.5}));
  EXPECT_EQ(costs.recompute, (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(costs.latency, 0);
  EXPECT_EQ(costs.bandwidth, 0);
}

TEST(SimulateAblated, HoldsGradientsGraphsAndInputs) {
  balancing::Profile profile;
  profile.rows = 1;
  profile.times.assign(2, {1, 2});
  balancing::LayerMemory layer;
  layer.parameter_bytes = layer.trained_bytes = 100;
  layer.output_bytes = 10;
  profile.memory.layers.assign(2, layer);
  profile.memory.input_bytes = 4;
  profile.memory.saved = {{1000, {0}}, {2000, {1}}};
  Experiment experiment;
  experiment.partitions = 2;
  experiment.balance = {1, 1};
  experiment.batch_size = experiment.chunks = 3;
  experiment.checkpoint = Checkpoint::kNever;
  const auto timeline = simulate_ablated(profile, experiment, {}, 1, {}, 0);
  EXPECT_DOUBLE_EQ(timeline.makespan, (3 + 2 - 1) * 3);
  EXPECT_EQ(timeline.peak_bytes,
            (std::vector<double>{200 + 3 * 1000, 200 + 3 * 2000}));
  // With checkpointing: the inputs of all micro-batches, and one graph. Those
  // of the first stage are views of the mini-batch.
  experiment.checkpoint = Checkpoint::kAlways;
  EXPECT_EQ(simulate_ablated(profile, experiment, {}, 1, {}, 0).peak_bytes,
            (std::vector<double>{200 + 1000, 200 + 3 * 10 + 2000}));
}

}  // namespace
}  // namespace gpipe::benchmarks
