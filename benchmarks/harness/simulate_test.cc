#include "benchmarks/harness/simulate.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <numeric>
#include <stdexcept>

#include "benchmarks/harness/experiments_of_tests.h"
#include "gpipe/meta.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(MeasureLink, NothingIsCopiedBetweenPartitionsOnCpus) {
  const c10::Device cpu(c10::kCPU), first(c10::kCPU, 0);
  for (const auto& link : {measure_link(cpu, cpu), measure_link(cpu, first)}) {
    EXPECT_EQ(link.latency, 0);
    EXPECT_EQ(link.bandwidth, 0);
  }
}

TEST(MeasureLink, NothingIsCopiedFromAnAcceleratorToItself) {
  // The device need not exist.
  const c10::Device device(c10::kCUDA, 5);
  EXPECT_EQ(measure_link(device, device).bandwidth, 0);
}

torch::nn::Sequential mlp(int64_t depth) {
  torch::nn::Sequential model;
  for (int64_t k = 0; k < depth; ++k) {
    model->push_back(torch::nn::Linear(4, 4));
    model->push_back(torch::nn::ReLU());
  }
  return model;
}

TEST(LayerKinds, AreEqualForLayersThatDoTheSameOnTheSameShapes) {
  const auto kinds = layer_kinds(mlp(3), at::zeros({2, 4}));
  ASSERT_EQ(kinds.size(), 6u);
  EXPECT_EQ(kinds[2], kinds[4]);
  EXPECT_EQ(kinds[1], kinds[3]);
  EXPECT_NE(kinds[2], kinds[3]);
}

TEST(LayerKinds, TheFirstLayerIsLikeNoOther) {
  const auto kinds = layer_kinds(mlp(2), at::zeros({2, 4}));
  EXPECT_NE(kinds[0], kinds[2]);
}

TEST(LayerKinds, DifferByTheShapeThatComesIn) {
  EXPECT_NE(layer_kinds(mlp(2), at::zeros({2, 4}))[2],
            layer_kinds(mlp(2), at::zeros({3, 4}))[2]);
}

TEST(LayerKinds, AreThoseOfAModelWithoutMemoryToo) {
  const auto real = layer_kinds(mlp(2), at::zeros({2, 4}));
  const MetaGuard meta;
  EXPECT_EQ(layer_kinds(mlp(2), at::zeros({2, 4})), real);
}

TEST(LayerKinds, AShallowModelCoversADeepOneOnceEachKindIsThere) {
  const auto deep = layer_kinds(mlp(9), at::zeros({2, 4}));
  EXPECT_FALSE(covers(layer_kinds(mlp(1), at::zeros({2, 4})), deep));
  EXPECT_TRUE(covers(layer_kinds(mlp(2), at::zeros({2, 4})), deep));
}

TEST(TimesByKind, AreTheMediansOfTheKind) {
  const auto times = times_by_kind(
      {"b", "a"}, {"a", "b", "b", "b"},
      {{1, 5, 0, 0, 7}, {2, 4, 0, 0, 3}, {4, 90, 0, 0, 2}, {50, 8, 0, 0, 4}});
  ASSERT_EQ(times.size(), 2u);
  EXPECT_EQ(times[0].forward, 4);
  EXPECT_EQ(times[0].backward, 8);
  EXPECT_EQ(times[0].accumulate, 3);
  EXPECT_EQ(times[1].forward, 1);
  EXPECT_EQ(times[1].backward, 5);
}

TEST(TimesByKind, RefusesAKindThatWasNotTimed) {
  EXPECT_THROW(times_by_kind({"c"}, {"a"}, {{1, 5}}), std::invalid_argument);
  EXPECT_THROW(times_by_kind({"a"}, {"a"}, {}), std::invalid_argument);
}

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
  EXPECT_THAT(
      [&] {
        speed_for(equal_layers(4), step, {0.5, 160}, 1);
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("bandwidth")));
}

constexpr int64_t kColumns = 8;

Experiment row(std::string name, int64_t partitions, int64_t chunks) {
  Experiment experiment;
  experiment.name = std::move(name);
  experiment.partitions = partitions;
  experiment.batch_size = 32;
  experiment.chunks = chunks;
  experiment.size = {40};
  return experiment;
}

// Returns a benchmark whose model alternates Linear and ReLU. Experiment::size
// is the number of pairs, which must be even.
Benchmark towers() {
  Benchmark benchmark;
  benchmark.published = {{"speed-up", Figure::kSpeedUp},
                         {"samples/s", Figure::kSpeed}};
  benchmark.model = [](const Experiment& experiment) {
    TORCH_CHECK_VALUE(experiment.size.at(0) % 2 == 0, "only even depths");
    torch::nn::Sequential model;
    for (int64_t k = 0; k < experiment.size[0]; ++k) {
      model->push_back(torch::nn::Linear(kColumns, kColumns));
      model->push_back(torch::nn::ReLU());
    }
    return model;
  };
  benchmark.paper.input = [](int64_t rows) {
    return at::ones({rows, kColumns});
  };
  benchmark.paper.experiments = {row("baseline", 0, 1),
                                 row("pipeline-4", 4, 8)};
  return benchmark;
}

SimulateOptions quick() {
  SimulateOptions options;
  options.profile_seconds = 0;
  return options;
}

double samples_per_second(const Outcome& outcome) {
  return static_cast<double>(outcome.samples) /
         outcome.durations.at(0).wall_seconds;
}

TEST(Simulator, DevicesAreAsFastAsTheBaseWasPublished) {
  Benchmark benchmark = towers();
  auto& experiments = benchmark.paper.experiments;
  experiments[0].published = {1, 250};
  experiments[1].published = {3, 700};
  Simulator simulator(benchmark, benchmark.paper, quick());
  EXPECT_NEAR(samples_per_second(simulator.simulate(experiments[0])), 250,
              1e-4);
  EXPECT_THAT(simulator.notes(), Contains(HasSubstr("250 samples/s")));
}

TEST(Simulator, TheFirstPublishedSpeedCountsIfTheBaseHasNone) {
  Benchmark benchmark = towers();
  auto& experiments = benchmark.paper.experiments;
  experiments[0].published = {1, std::nullopt};
  experiments[1].published = {3, 700};
  Simulator simulator(benchmark, benchmark.paper, quick());
  EXPECT_NEAR(samples_per_second(simulator.simulate(experiments[1])), 700,
              1e-3);
}

TEST(Simulator, PublishedSpeedsSayNothingOnReducedSizes) {
  Benchmark benchmark = towers();
  benchmark.small = benchmark.paper;
  auto& experiments = benchmark.small.experiments;
  // No machine reaches this speed: if it were used, simulate() would throw.
  experiments[0].published = {1, 1e15};
  Simulator simulator(benchmark, benchmark.small, quick());
  const double profiled =
      samples_per_second(simulator.simulate(experiments[0]));
  EXPECT_GT(profiled, 0);
  EXPECT_LT(profiled, 1e12);
  EXPECT_THAT(simulator.notes(), Contains(HasSubstr("are of other sizes")));
}

TEST(Simulator, GivesATimelineAndABalanceOfTheWholeModel) {
  Benchmark benchmark = towers();
  Simulator simulator(benchmark, benchmark.paper, quick());
  const Outcome outcome = simulator.simulate(benchmark.paper.experiments[1]);
  const auto& balance = outcome.experiment.balance;
  ASSERT_EQ(balance.size(), 4u);
  EXPECT_EQ(std::accumulate(balance.begin(), balance.end(), int64_t{0}), 80);
  ASSERT_TRUE(outcome.timeline);
  EXPECT_EQ(outcome.timeline->ranks.size(), 4u);
  // 8 forwards, 7 recomputes and 8 backwards.
  EXPECT_EQ(outcome.timeline->ranks[0].size(), 23u);
  EXPECT_EQ(outcome.durations.at(0).wall_seconds, outcome.timeline->makespan);
  EXPECT_EQ(outcome.samples, 32);
}

TEST(Simulator, KeepsABalanceThatIsGiven) {
  Benchmark benchmark = towers();
  Experiment given = benchmark.paper.experiments[1];
  given.balance = {77, 1, 1, 1};
  Simulator simulator(benchmark, benchmark.paper, quick());
  EXPECT_EQ(simulator.simulate(given).experiment.balance, given.balance);
}

TEST(Simulator, TimesTheMostShallowModelWithAllKindsOfLayers) {
  // The model refuses a depth of 1. A depth of 2 has all kinds, since the first
  // layer is a kind of its own.
  Benchmark benchmark = towers();
  Simulator simulator(benchmark, benchmark.paper, quick());
  simulator.simulate(benchmark.paper.experiments[0]);
  EXPECT_THAT(simulator.notes(), Contains(HasSubstr("timed as (2)")));
  EXPECT_THAT(simulator.notes(), Contains(HasSubstr("80 layers of 3 kinds")));
}

TEST(Simulator, ProfilesEachSizeOnce) {
  Benchmark benchmark = towers();
  Simulator simulator(benchmark, benchmark.paper, quick());
  const auto first = simulator.simulate(benchmark.paper.experiments[1]);
  const auto again = simulator.simulate(benchmark.paper.experiments[1]);
  EXPECT_EQ(first.durations.at(0).wall_seconds,
            again.durations.at(0).wall_seconds);
}

TEST(Simulator, TellsIfThePublishedSpeedIsOutOfTheLinksReach) {
  Benchmark benchmark = towers();
  auto& experiment = benchmark.paper.experiments[1];
  experiment.published = {std::nullopt, 1e9};
  Simulator simulator(benchmark, benchmark.paper, quick());
  EXPECT_THROW(simulator.simulate(experiment), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::benchmarks
