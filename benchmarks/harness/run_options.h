// The flags of run_benchmark().
#pragma once

#include <cstdint>
#include <memory>

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/mode.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/rows.h"
#include "benchmarks/harness/settings.h"
#include "benchmarks/harness/simulate.h"

namespace gpipe::benchmarks {

struct RunOptions {
  Settings settings;
  RowOptions rows;
  Mode mode = Mode::kMeasure;
  bool small = false;
  std::vector<Experiment> experiments;  // chosen, with what the flags say
  int64_t epochs = 1;
  int64_t skip_epochs = 0;
  SimulateOptions simulate;
  bool plan_only = false;         // --dry_run
  bool environment_only = false;  // --env
  std::shared_ptr<Ranks> ranks;   // --distributed, if anything is to be run

  const Workload& workload(const Benchmark& benchmark) const {
    return small ? benchmark.small : benchmark.paper;
  }
};

// std::invalid_argument for a value without sense.
RunOptions parse_run_options(const Benchmark& benchmark);

}  // namespace gpipe::benchmarks
