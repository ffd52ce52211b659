// Measures how long training stops for a run checkpoint of 200 MB: with save(),
// which writes the files, and with save_in_background(), which copies the
// state.
//
//   ./bazelw run //training:run_files_benchmark
//
// The files are written to the folder for temporary files, and to the disk
// below it. The time of the background save is that of the call alone; the time
// until the step is complete is the counter "complete_s".
#include <ATen/ops/rand.h>
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "training/run_files.h"
#include "training/run_state.h"

namespace gpipe {
namespace {

using Clock = std::chrono::steady_clock;

// Returns a state of 25 layers with 8 MB each: a weight, and two tensors of the
// same size that Adam keeps for it.
RunState large_state() {
  constexpr int64_t kLayers = 25, kElements = 200'000'000 / 25 / 3 / 4;
  RunState state;
  OptimizerState& optimizer = state.optimizer.emplace();
  optimizer.type = "Adam";
  optimizer.groups = {{{"lr", 0.1}}};
  for (int64_t k = 0; k < kLayers; ++k) {
    const std::string name = std::to_string(k) + ".weight";
    state.model.insert(name, at::rand({kElements}));
    optimizer.parameters[name] = {0,
                                  {{"step", 1}},
                                  {{"exp_avg", at::rand({kElements})},
                                   {"exp_avg_sq", at::rand({kElements})}}};
  }
  return state;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void stall(benchmark::State& bench, bool in_background) {
  std::string folder =
      (std::filesystem::temp_directory_path() / "gpipe_XXXXXX").string();
  if (!mkdtemp(folder.data())) {
    bench.SkipWithError(("no folder can be made at " + folder).c_str());
    return;
  }
  RunState state = large_state();
  double complete = 0;
  {
    RunFiles files(folder + "/run");
    for (auto _ : bench) {
      ++state.step;
      const auto start = Clock::now();
      if (in_background) {
        files.save_in_background(state);
      } else {
        files.save(state);
      }
      bench.SetIterationTime(seconds_since(start));
      files.wait();
      complete += seconds_since(start);
    }
  }
  bench.counters["complete_s"] =
      benchmark::Counter(complete, benchmark::Counter::kAvgIterations);
  std::filesystem::remove_all(folder);
}

BENCHMARK_CAPTURE(stall, save, false)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(10);
BENCHMARK_CAPTURE(stall, save_in_background, true)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(10);

}  // namespace
}  // namespace gpipe
