// The options of run_benchmark(), from its flags.
#pragma once

#include <cstdint>
#include <memory>

#include "benchmarks/harness/costs/simulate.h"
#include "benchmarks/harness/experiment/benchmark.h"
#include "benchmarks/harness/experiment/experiment.h"
#include "benchmarks/harness/experiment/mode.h"
#include "benchmarks/harness/experiment/rows.h"
#include "benchmarks/harness/experiment/settings.h"
#include "gpipe/distributed/world.h"

namespace gpipe::benchmarks {

// The values of the flags. Flags at their defaults take the values of the
// benchmark.
struct RunOptions {
  Settings settings;
  RowOptions rows;
  Mode mode = Mode::kMeasure;
  bool small = false;
  std::vector<Experiment> experiments;  // selected and changed by the flags
  int64_t samples = 0;                  // per epoch of a speed table
  int64_t epochs = 1;
  int64_t skip_epochs = 0;
  SimulateOptions simulate;
  bool plan_only = false;         // --dry_run
  bool environment_only = false;  // --env
  // The processes of --distributed, if an experiment will run. All run the same
  // program with the same flags. A row with a pipeline has one partition in
  // each process. A row without one runs on rank 0 alone, while the others
  // wait. Rank 0 prints the table.
  std::shared_ptr<World> world;

  const Workload& workload(const Benchmark& benchmark) const {
    return small ? benchmark.small : benchmark.paper;
  }
};

// Returns the options. With --measure_links it measures the links of a
// simulation; with --distributed it blocks until all ranks are connected.
//
// Throws std::invalid_argument if a flag has an invalid value, and what
// World::connect() throws.
RunOptions parse_run_options(const Benchmark& benchmark);

}  // namespace gpipe::benchmarks
