// Simulation of steps with and without a mechanism.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/harness/experiment/benchmark.h"
#include "benchmarks/harness/experiment/outcome.h"
#include "benchmarks/harness/run_options.h"

namespace gpipe::benchmarks {

// Sets the timeline of a simulated step (see simulate_ablated() in ablation.h)
// and its duration in each row, and adds sentences about the simulation to
// `notes`. The layers are profiled once (see layer_profile.h). Rows without
// direct skips use the model with relays.
//
// The speed of the devices is `options.simulate.device_speed`. If that is 0,
// timeline_yardstick() has its published speed; at reduced sizes, devices are
// as fast as the profiled one. In rows without ordered backwards,
// `options.settings.seed` draws the orders.
//
// `rows`: rows of timeline_benchmark(), all with the same size and balance.
//
// Throws std::invalid_argument for a row of another benchmark, and what
// profile_layers() and simulate_ablated() throw. Threads: The rules of
// profile_layers() apply.
void simulate_rows(const Benchmark& benchmark, const RunOptions& options,
                   std::vector<Outcome>* rows, std::vector<std::string>* notes);

}  // namespace gpipe::benchmarks
