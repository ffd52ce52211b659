// Steps with and without a mechanism, on the devices that there are.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/outcome.h"
#include "benchmarks/harness/run_options.h"

namespace gpipe::benchmarks {

// Says in each of `rows`, which are rows of timeline_benchmark(), what it will
// be measured on: its devices and their threads; or, as its error, why it is
// left out. That is for too few devices, and without copy streams where nothing
// is copied, since all partitions are on one device.
void plan_devices(const std::vector<c10::Device>& devices,
                  std::vector<Outcome>* rows);

// Trains each of `rows`, which are as plan_devices() left them and have one
// size, balance and mini-batch, for options.epochs epochs of one step: forward,
// loss and backward, without an optimizer. Rows take turns, so that whatever
// else the machine does is in all of them. Fills in a duration per epoch that
// is not skipped, with all devices idle at its start and end, and the timeline
// of the last one if `timelines`. Rows with an error stay as they are. A row
// that fails gets one, and the others go on.
//
// Threads: one at a time; the seed is set for the whole process.
void measure_rows(const Benchmark& benchmark, const RunOptions& options,
                  bool timelines, std::vector<Outcome>* rows);

}  // namespace gpipe::benchmarks
