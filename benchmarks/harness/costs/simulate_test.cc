#include "benchmarks/harness/costs/simulate.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <numeric>
#include <stdexcept>

namespace gpipe::benchmarks {
namespace {

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

bool any_has(const std::vector<std::string>& notes, const std::string& text) {
  for (const std::string& note : notes) {
    if (note.find(text) != std::string::npos) return true;
  }
  return false;
}

TEST(Simulator, DevicesAreAsFastAsTheBaseWasPublished) {
  Benchmark benchmark = towers();
  auto& experiments = benchmark.paper.experiments;
  experiments[0].published = {1, 250};
  experiments[1].published = {3, 700};
  Simulator simulator(benchmark, benchmark.paper, quick());
  EXPECT_NEAR(samples_per_second(simulator.simulate(experiments[0])), 250,
              1e-4);
  EXPECT_TRUE(any_has(simulator.notes(), "250 samples/s"));
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
  EXPECT_TRUE(any_has(simulator.notes(), "are of other sizes"));
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
  EXPECT_TRUE(any_has(simulator.notes(), "timed as (2)"));
  EXPECT_TRUE(any_has(simulator.notes(), "80 layers of 3 kinds"));
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
