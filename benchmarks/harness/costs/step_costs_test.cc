#include "benchmarks/harness/costs/step_costs.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace gpipe::benchmarks {
namespace {

// Returns the profile of `layers` equal layers: 1 s forward and 2 s backward
// for 2 rows. The input has 80 bytes, each output 40.
balancing::Profile equal_layers(std::size_t layers) {
  balancing::Profile profile;
  profile.rows = 2;
  profile.times.assign(layers, {1, 2});
  profile.memory.input_bytes = 80;
  balancing::LayerMemory memory;
  memory.output_bytes = 40;
  profile.memory.layers.assign(layers, memory);
  return profile;
}

Experiment experiment_of(std::vector<int64_t> balance, int64_t batch_size,
                         int64_t chunks, Checkpoint checkpoint) {
  Experiment result;
  result.partitions = static_cast<int64_t>(balance.size());
  result.balance = std::move(balance);
  result.batch_size = batch_size;
  result.chunks = chunks;
  result.checkpoint = checkpoint;
  return result;
}

TEST(CostsOf, AreThoseOfThePlannersStagesWithTheLinkOfTheExperiment) {
  const auto costs =
      costs_of(equal_layers(3),
               experiment_of({1, 2}, 16, 4, Checkpoint::kNever), {3, 5}, 2);
  EXPECT_EQ(costs.forward, (std::vector<double>{1, 2}));
  EXPECT_EQ(costs.backward, (std::vector<double>{2, 4}));
  EXPECT_EQ(costs.recompute, costs.forward);
  EXPECT_EQ(costs.boundary_bytes, (std::vector<double>{80}));
  EXPECT_EQ(costs.latency, 3);
  EXPECT_EQ(costs.bandwidth, 5);
}

TEST(SimulateStep, TakesFillDrainsSlotsOnEqualPartitions) {
  // Fill-drain takes (m + n - 1)(f + b) for m micro-batches on n partitions.
  const auto timeline = simulate_step(
      equal_layers(4), experiment_of({1, 1, 1, 1}, 16, 8, Checkpoint::kNever),
      {}, 1);
  EXPECT_DOUBLE_EQ(timeline.makespan, (8 + 4 - 1) * 3);
}

TEST(SimulateStep, RecomputesAheadOfTheGradient) {
  // Each backward takes f + b with its recompute. The first recompute of a rank
  // runs before the gradient arrives, so it delays only the last rank.
  const auto always = simulate_step(
      equal_layers(4), experiment_of({1, 1, 1, 1}, 16, 8, Checkpoint::kAlways),
      {}, 1);
  EXPECT_DOUBLE_EQ(always.makespan, (8 + 4 - 1) * 3 + 8);
  // The last micro-batch has the first backward and is not recomputed.
  const auto except_last = simulate_step(
      equal_layers(4),
      experiment_of({1, 1, 1, 1}, 16, 8, Checkpoint::kExceptLast), {}, 1);
  EXPECT_DOUBLE_EQ(except_last.makespan, (8 + 4 - 1) * 3 + 7);
}

TEST(SimulateStep, HasACopyPerBoundaryOnTheWayInAndOut) {
  // 2 rows are 40 bytes, so a copy takes 0.5 s of latency and 0.25 s on the
  // link. That is less than a cell, so copies delay only warm-up and drain.
  const auto timeline = simulate_step(
      equal_layers(4), experiment_of({1, 1, 1, 1}, 16, 8, Checkpoint::kNever),
      {0.5, 160}, 1);
  EXPECT_DOUBLE_EQ(timeline.makespan, (8 + 4 - 1) * 3 + 2 * 3 * 0.75);
  EXPECT_FALSE(timeline.transfers.empty());
}

TEST(SimulateStep, OfThePlainModelIsAForwardAndABackwardOfTheMiniBatch) {
  Experiment plain = experiment_of({}, 16, 8, Checkpoint::kAlways);
  const auto timeline = simulate_step(equal_layers(4), plain, {0.5, 160}, 2);
  EXPECT_DOUBLE_EQ(timeline.makespan, 4 * 3 * 8 / 2.0);
  EXPECT_EQ(timeline.ranks.size(), 1u);
}

TEST(SimulateStep, HasAllRowsOfAnUnevenMiniBatch) {
  // 5 rows in 4 chunks are 2, 2 and 1. On one partition only their sum matters.
  const auto timeline = simulate_step(
      equal_layers(1), experiment_of({1}, 5, 4, Checkpoint::kNever), {}, 1);
  EXPECT_DOUBLE_EQ(timeline.makespan, 3 * 5 / 2.0);
}

TEST(SpeedFor, MakesTheStepTakeTheGivenTime) {
  const Link link{0.5, 160};
  for (const double seconds : {1000.0, 33.0, 10.0}) {
    const auto step =
        experiment_of({1, 1, 1, 1}, 16, 8, Checkpoint::kExceptLast);
    const double speed = speed_for(equal_layers(4), step, link, seconds);
    EXPECT_NEAR(simulate_step(equal_layers(4), step, link, speed).makespan,
                seconds, 1e-8 * seconds);
  }
}

TEST(SpeedFor, IsTheRatioOfTimesWithoutCopies) {
  const auto step = experiment_of({2, 2}, 16, 8, Checkpoint::kNever);
  EXPECT_NEAR(speed_for(equal_layers(4), step, {}, 6), (8 + 1) * 6 / 6.0, 1e-8);
}

TEST(SpeedFor, RefusesATimeThatTheCopiesAloneExceed) {
  const auto step = experiment_of({1, 1, 1, 1}, 16, 8, Checkpoint::kNever);
  try {
    speed_for(equal_layers(4), step, {0.5, 160}, 1);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("bandwidth"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace gpipe::benchmarks
