// Time to cut a chain of layers, depending on how much choice is left once the
// largest block is known.
//
//   bazel run //balancing:partition_benchmark

#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "balancing/partition.h"

namespace {

std::vector<double> whole_costs(int64_t layers) {
  std::mt19937 random(0);
  std::vector<double> costs(layers);
  for (double& cost : costs) cost = random() % 4;
  return costs;
}

std::vector<double> random_costs(int64_t layers) {
  std::mt19937 random(0);
  std::exponential_distribution<double> seconds(1000);
  std::vector<double> costs(layers);
  for (double& cost : costs) cost = seconds(random);
  return costs;
}

void balance_cost(benchmark::State& state, const std::vector<double>& costs) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        gpipe::balancing::balance_cost(costs, state.range(1)));
  }
}

// Costs as in a profile: the largest block leaves little choice.
void BM_BalanceCost_Profile(benchmark::State& state) {
  balance_cost(state, random_costs(state.range(0)));
}

// Whole numbers from 0 to 3: many cuts are equally good.
void BM_BalanceCost_Ties(benchmark::State& state) {
  balance_cost(state, whole_costs(state.range(0)));
}

// One layer as large as half of the others together: all others may be cut
// anywhere.
void BM_BalanceCost_OneHugeLayer(benchmark::State& state) {
  auto costs = random_costs(state.range(0));
  costs[costs.size() / 2] = 0.0005 * static_cast<double>(costs.size());
  balance_cost(state, costs);
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"layers", "partitions"})
      ->Args({24, 8})
      ->Args({370, 8})
      ->Args({1000, 64})
      ->Args({2133, 8})
      ->Args({100000, 1024})
      ->Unit(benchmark::kMicrosecond);
}

BENCHMARK(BM_BalanceCost_Profile)->Apply(sizes);
BENCHMARK(BM_BalanceCost_Ties)->Apply(sizes);
BENCHMARK(BM_BalanceCost_OneHugeLayer)->Apply(sizes);

}  // namespace
