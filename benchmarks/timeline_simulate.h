// Steps with and without a mechanism, on devices that there are not.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/outcome.h"
#include "benchmarks/harness/run_options.h"

namespace gpipe::benchmarks {

// Gives each of `rows`, whose experiments are rows of timeline_benchmark() with
// one size and one balance, the timeline of a simulated step (see
// simulate_ablated() in ablation.h) and its duration; and `notes` sentences on
// how. The layers are profiled once, as in layer_profile.h. Rows without direct
// skips are of the model with relays. Devices are as fast as
// options.simulate.device_speed says; 0: such that timeline_yardstick() has its
// published speed or, at reduced sizes, as fast as the profiled one.
// options.settings.seed draws the orders of backwards that have none.
//
// Errors: those of profiling and of simulate_ablated(); std::invalid_argument
// for a row of another benchmark. Threads: as for profile_layers().
void simulate_rows(const Benchmark& benchmark, const RunOptions& options,
                   std::vector<Outcome>* rows, std::vector<std::string>* notes);

}  // namespace gpipe::benchmarks
