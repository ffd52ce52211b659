// Time to cut a chain of layers, depending on how much choice is left once the
// largest block is known, and on the other conditions.
//
//   bazel run //balancing/solver:partition_benchmark

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "balancing/chain/chain.h"
#include "balancing/solver/fill_drain.h"
#include "balancing/solver/infeasible.h"
#include "balancing/solver/partition.h"
#include "gpipe/schedule/checkpoint.h"

namespace {

using gpipe::Checkpoint;
using gpipe::balancing::Chain;
using gpipe::balancing::ChainLayer;
using gpipe::balancing::ChainSchedule;

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

// Backwards that are almost unrelated to the forwards.
void BM_BalanceFillDrain(benchmark::State& state) {
  const auto forward = random_costs(state.range(0));
  std::vector<double> backward(forward.rbegin(), forward.rend());
  for (double& cost : backward) cost *= 2;
  for (auto _ : state) {
    benchmark::DoNotOptimize(gpipe::balancing::balance_fill_drain(
        forward, backward, state.range(1), 32));
  }
}

BENCHMARK(BM_BalanceFillDrain)->Apply(sizes);

// A U-Net of five levels. Tensors are large at both ends and small in the
// middle, parameters the other way round, and a skip tensor crosses each level.
Chain u_net(int64_t layers, int64_t partitions, int64_t microbatches) {
  constexpr int64_t kLevels = 5;
  std::mt19937 random(0);
  std::uniform_real_distribution<double> factor(0.7, 1.3);
  Chain chain;
  chain.layers.resize(layers);
  const int64_t per_level = layers / (2 * kLevels + 1);
  for (int64_t k = 0; k < layers; ++k) {
    const int64_t place = k / per_level;
    const int64_t level =
        std::max<int64_t>(0, std::min(place, 2 * kLevels - place));
    ChainLayer& layer = chain.layers[k];
    layer.forward = 1e-3 * factor(random) / static_cast<double>(1 + level);
    layer.backward = 2 * factor(random) * layer.forward;
    layer.output_bytes = 64e6 / static_cast<double>(int64_t{1} << level);
    layer.saved_bytes = layer.output_bytes;
    layer.resident_bytes = 1e5 * static_cast<double>(int64_t{1} << 2 * level);
  }
  for (int64_t level = 0; level < kLevels; ++level) {
    chain.skips.push_back({(level + 1) * per_level - 1,
                           (2 * kLevels - level) * per_level,
                           64e6 / static_cast<double>(int64_t{1} << level)});
  }
  chain.devices.resize(partitions);
  chain.link = {2e-5, 1e-10};
  chain.microbatches = microbatches;
  keep_for(chain, ChainSchedule::kFillDrain, Checkpoint::kAlways);
  return chain;
}

// Sets the limit to 1.05 times the smallest one that makes a cut possible.
void limit_memory(Chain& chain) {
  for (auto& device : chain.devices) device.memory_bytes = 0;
  try {
    balance_chain(chain);
  } catch (const gpipe::balancing::InfeasibleError& error) {
    for (auto& device : chain.devices) {
      device.memory_bytes = 1.05 * error.least_bytes();
    }
  }
}

void balance(benchmark::State& state, const Chain& chain) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(gpipe::balancing::balance_chain(chain));
  }
}

Chain u_net(const benchmark::State& state) {
  return u_net(state.range(0), state.range(1), state.range(2));
}

void BM_BalanceChain_Copies(benchmark::State& state) {
  balance(state, u_net(state));
}

void BM_BalanceChain_SlowCopies(benchmark::State& state) {
  Chain chain = u_net(state);
  chain.link.seconds_per_byte = 1e-8;
  balance(state, chain);
}

void BM_BalanceChain_Memory(benchmark::State& state) {
  Chain chain = u_net(state);
  limit_memory(chain);
  balance(state, chain);
}

void BM_BalanceChain_UnequalDevices(benchmark::State& state) {
  Chain chain = u_net(state);
  for (std::size_t j = 0; j < chain.devices.size(); ++j) {
    chain.devices[j].speed = 1 + 0.37 * static_cast<double>(j % 3);
  }
  balance(state, chain);
}

// One huge layer; the rest may be cut anywhere.
void BM_BalanceChain_OneHugeLayer(benchmark::State& state) {
  Chain chain = u_net(state);
  chain.layers[chain.layers.size() / 2].forward =
      5e-4 * static_cast<double>(chain.layers.size());
  balance(state, chain);
}

// Whole numbers and no copies: many cuts are equally good.
void BM_BalanceChain_Ties(benchmark::State& state) {
  Chain chain = u_net(state);
  chain.link = {};
  std::mt19937 random(0);
  for (ChainLayer& layer : chain.layers) {
    layer.forward = random() % 4;
    layer.backward = 2 * layer.forward;
  }
  balance(state, chain);
}

// Time to find that no cut fits and which limit would be enough.
void BM_BalanceChain_Infeasible(benchmark::State& state) {
  Chain chain = u_net(state);
  limit_memory(chain);
  for (auto& device : chain.devices) device.memory_bytes *= 0.9;
  for (auto _ : state) {
    try {
      balance_chain(chain);
    } catch (const gpipe::balancing::InfeasibleError& error) {
      benchmark::DoNotOptimize(error.least_bytes());
    }
  }
}

void chain_sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"layers", "partitions", "microbatches"})
      ->Args({370, 8, 32})
      ->Args({2133, 8, 1})
      ->Args({2133, 8, 2})
      ->Args({2133, 8, 32})
      ->Unit(benchmark::kMillisecond);
}

BENCHMARK(BM_BalanceChain_Copies)->Apply(chain_sizes);
BENCHMARK(BM_BalanceChain_SlowCopies)->Apply(chain_sizes);
BENCHMARK(BM_BalanceChain_Memory)->Apply(chain_sizes);
BENCHMARK(BM_BalanceChain_UnequalDevices)->Apply(chain_sizes);
BENCHMARK(BM_BalanceChain_OneHugeLayer)->Apply(chain_sizes);
BENCHMARK(BM_BalanceChain_Ties)->Apply(chain_sizes);
BENCHMARK(BM_BalanceChain_Infeasible)->Apply(chain_sizes);

}  // namespace
