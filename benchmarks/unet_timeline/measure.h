// Measurement of steps with and without a mechanism.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "benchmarks/harness/experiment/benchmark.h"
#include "benchmarks/harness/experiment/outcome.h"
#include "benchmarks/harness/run_options.h"

namespace gpipe::benchmarks {

// Sets the devices and threads of each row, or sets its error if the row cannot
// be measured. The error says that there are too few devices, or that the row
// is without copy streams and nothing is copied, since all its partitions are
// on one device.
//
// `rows`: rows of timeline_benchmark().
void plan_devices(const std::vector<c10::Device>& devices,
                  std::vector<Outcome>* rows);

// Trains each row for `options.epochs` epochs. An epoch is one step: forward,
// loss and backward, without an optimizer. Rows take turns in each epoch, so
// that other work on the machine affects all of them equally.
//
// Sets a duration for each epoch that is not skipped; all devices are idle at
// its start and end. Sets the timeline of the last step if `timelines` is true.
// Rows that have an error are not trained. If a row fails, its error is set and
// the other rows go on.
//
// `rows`: the rows after plan_devices(), all with the same size, balance and
// mini-batch.
//
// Threads: Only one call may run at a time, since the seed is set for the whole
// process.
void measure_rows(const Benchmark& benchmark, const RunOptions& options,
                  bool timelines, std::vector<Outcome>* rows);

}  // namespace gpipe::benchmarks
