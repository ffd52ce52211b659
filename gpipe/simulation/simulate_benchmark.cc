// Benchmarks of simulate(), critical_path() and improve_first(), in actions per
// second ("items_per_second").
//
//   bazel run -c opt //gpipe/simulation:simulate_benchmark

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdint>

#include "gpipe/schedule/fill_drain.h"
#include "gpipe/schedule/one_forward_one_backward.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/simulation/critical_path.h"
#include "gpipe/simulation/improve.h"
#include "gpipe/simulation/simulate.h"

namespace {

using gpipe::Costs;
using gpipe::Schedule;

// Returns 1F1B for the stages and micro-batches of a benchmark.
Schedule in_turn(const benchmark::State& state) {
  return gpipe::one_forward_one_backward(static_cast<int>(state.range(0)),
                                         static_cast<int>(state.range(1)));
}

Costs costs_of(int64_t stages) {
  Costs costs;
  for (int64_t s = 0; s < stages; ++s) {
    costs.forward.push_back(1 + 0.01 * static_cast<double>(s % 7));
    costs.backward.push_back(2 + 0.01 * static_cast<double>(s % 5));
    costs.recompute.push_back(1);
  }
  return costs;
}

int64_t size_of(const Schedule& schedule) {
  std::size_t actions = 0;
  for (const auto& rank : schedule.ranks) actions += rank.size();
  return static_cast<int64_t>(actions);
}

void simulate_all(benchmark::State& state, const Schedule& schedule,
                  const Costs& costs) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(gpipe::simulate(schedule, costs));
  }
  state.SetItemsProcessed(state.iterations() * size_of(schedule));
}

void BM_Simulate_FillDrain(benchmark::State& state) {
  const int stages = static_cast<int>(state.range(0));
  simulate_all(state,
               gpipe::fill_drain(stages, static_cast<int>(state.range(1))),
               costs_of(stages));
}

void BM_Simulate_InTurn(benchmark::State& state) {
  simulate_all(state, in_turn(state), costs_of(state.range(0)));
}

// Simulates a schedule with recomputes, links and memory.
void BM_Simulate_InTurnWithEverything(benchmark::State& state) {
  const auto stages = static_cast<std::size_t>(state.range(0));
  Costs costs = costs_of(state.range(0));
  costs.latency = 0.01;
  costs.bandwidth = 10;
  costs.boundary_bytes.assign(stages, 1);
  costs.resident_bytes.assign(stages, 100);
  costs.activation_bytes.assign(stages, 10);
  costs.input_bytes.assign(stages, 1);
  simulate_all(state,
               gpipe::with_recompute(in_turn(state), [](int) { return true; }),
               costs);
}

void BM_CriticalPath(benchmark::State& state) {
  const Schedule schedule = in_turn(state);
  const gpipe::Timeline timeline =
      gpipe::simulate(schedule, costs_of(state.range(0)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(gpipe::critical_path(timeline));
  }
  state.SetItemsProcessed(state.iterations() * size_of(schedule));
}

// improve_first() runs a simulation for each stage.
void BM_ImproveFirst(benchmark::State& state) {
  const Schedule schedule = in_turn(state);
  const Costs costs = costs_of(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(gpipe::improve_first(schedule, costs));
  }
  state.SetItemsProcessed(state.iterations() * size_of(schedule) *
                          state.range(0));
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"stages", "microbatches"})
      ->Args({4, 8})
      ->Args({8, 64})
      ->Args({64, 512})
      ->Args({64, 8192})
      ->Unit(benchmark::kMicrosecond);
}

// The largest size: 1,024 ranks with 4,096 micro-batches, 8.4 * 10^6 actions.
// `bytes_per_action`: of the process at its peak, with the schedule.
void BM_Simulate_Scale(benchmark::State& state) {
  const Schedule schedule = in_turn(state);
  simulate_all(state, schedule, costs_of(state.range(0)));
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["bytes_per_action"] = 1024.0 *
                                       static_cast<double>(usage.ru_maxrss) /
                                       static_cast<double>(size_of(schedule));
}

BENCHMARK(BM_Simulate_Scale)
    ->ArgNames({"ranks", "microbatches"})
    ->Args({1024, 4096})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Simulate_FillDrain)->Apply(sizes);
BENCHMARK(BM_Simulate_InTurn)->Apply(sizes);
BENCHMARK(BM_Simulate_InTurnWithEverything)->Apply(sizes);
BENCHMARK(BM_CriticalPath)->Apply(sizes);
BENCHMARK(BM_ImproveFirst)
    ->ArgNames({"stages", "microbatches"})
    ->Args({8, 64})
    ->Args({64, 512})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
