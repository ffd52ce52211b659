// Benchmarks of choose(): seconds per plan, with all schedules.
//
//   bazel run -c opt //balancing/planner:planner_benchmark

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#include "balancing/planner/problem.h"
#include "balancing/planner/search.h"
#include "gpipe/schedule.h"

namespace gpipe::balancing::planner {
namespace {

// Returns a model of random layers and all schedules that train. Micro-batches
// are 1, 2, 4, ... up to 8 per rank. `gigabytes`: memory per rank, 0 for no
// limit; all ranks together need about 1,000 for the parameters.
Problem make_problem(int64_t ranks, int64_t layers, int64_t gigabytes) {
  Problem problem;
  for (int64_t count = 1; count <= 8 * ranks; count *= 2) {
    Workload& workload = problem.workloads.emplace_back();
    workload.microbatches = count;
    std::mt19937 random(1);
    const double part = 64.0 / static_cast<double>(count);
    for (int64_t k = 0; k < layers; ++k) {
      Layer& layer = workload.layers.emplace_back();
      layer.forward = layer.recompute =
          part * static_cast<double>(1 + random() % 20) / 1e3;
      layer.backward = 2 * layer.forward;
      layer.backward_input = layer.backward_weight = layer.forward;
      layer.output_bytes = part * static_cast<double>(random() % 20) * 1e6;
      layer.trained_bytes = 5e11 / static_cast<double>(layers);
      workload.saved.push_back(
          {part * static_cast<double>(random() % 20) * 1e7, {k}});
    }
  }
  problem.ranks.resize(static_cast<std::size_t>(ranks));
  for (int64_t r = 0; r < ranks; ++r) {
    Rank& rank = problem.ranks[r];
    if (gigabytes > 0) rank.memory_bytes = 1e9 * static_cast<double>(gigabytes);
    rank.speed = r % 8 == 0 ? 0.9 : 1;
  }
  problem.links = {{1e-5, 1e-11}};
  problem.schedules = training_schedule_names();
  if (gigabytes > 0) problem.recomputes.push_back(kWhereNeeded);
  return problem;
}

void BM_Choose(benchmark::State& state) {
  const Problem problem =
      make_problem(state.range(0), state.range(1), state.range(2));
  for (auto _ : state) {
    const auto choice = choose(problem);
    if (!choice) {
      state.SkipWithError("nothing fits");
      break;
    }
    state.counters["candidates"] = static_cast<double>(choice->tried.size());
    state.counters["simulations"] = static_cast<double>(choice->simulations);
    state.counters["over bound"] =
        choice->best.seconds / choice->best.lower_bound;
    state.SetLabel(choice->best.candidate.schedule + ", " +
                   std::to_string(choice->best.candidate.stages_per_rank) +
                   " per rank, " + to_string(choice->best.candidate.recompute));
  }
}

BENCHMARK(BM_Choose)
    ->ArgNames({"ranks", "layers", "GB"})
    ->Args({2, 100, 0})
    ->Args({4, 100, 0})
    ->Args({8, 200, 0})
    ->Args({8, 200, 200})
    ->Args({64, 1000, 0})
    ->Args({64, 1000, 24})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gpipe::balancing::planner
