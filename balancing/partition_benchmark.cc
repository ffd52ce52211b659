// Time to cut a chain of layers, by how much choice is left once the largest
// block is known.
//
//   bazel run //balancing:partition_benchmark

#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "balancing/partition.h"

namespace {

std::vector<double> random_costs(int64_t layers) {
  std::mt19937 random(0);
  std::exponential_distribution<double> seconds(1000);
  std::vector<double> costs(layers);
  for (double& cost : costs) cost = seconds(random);
  return costs;
}

// As from a profile: the largest block leaves little choice.
void BM_BalanceCost_Profile(benchmark::State& state) {
  const auto costs = random_costs(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        gpipe::balancing::balance_cost(costs, state.range(1)));
  }
}

// One layer as large as half of the others together: all others may be cut
// anywhere.
void BM_BalanceCost_OneHugeLayer(benchmark::State& state) {
  auto costs = random_costs(state.range(0));
  costs[costs.size() / 2] = 0.0005 * static_cast<double>(costs.size());
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        gpipe::balancing::balance_cost(costs, state.range(1)));
  }
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"layers", "partitions"})
      ->Args({24, 8})
      ->Args({370, 8})
      ->Args({1000, 64})
      ->Unit(benchmark::kMicrosecond);
}

BENCHMARK(BM_BalanceCost_Profile)->Apply(sizes);
BENCHMARK(BM_BalanceCost_OneHugeLayer)->Apply(sizes);

}  // namespace
