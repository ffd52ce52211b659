// Measurement of training steps on the devices of this machine.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "benchmarks/harness/costs/balancer.h"
#include "benchmarks/harness/experiment/benchmark.h"
#include "benchmarks/harness/experiment/outcome.h"
#include "gpipe/distributed/world.h"

namespace gpipe::benchmarks {

// What the processes of a run do together, for errors.
inline constexpr char kMeasuring[] = "measuring a table";

// The options of measure().
struct MeasureOptions {
  // A device that is listed several times is shared by partitions.
  std::vector<c10::Device> devices;
  int64_t samples = 0;  // per epoch of a speed table
  int64_t epochs = 1;
  // The number of warm-up epochs at the start that do not count; < epochs.
  int64_t skip_epochs = 0;
  uint64_t seed = 0;
  // The processes of a job that runs each partition in a process of its own;
  // null for partitions in one process.
  std::shared_ptr<World> world;
};

// A Balancer for each size of the model.
using Balancers = std::map<std::vector<int64_t>, Balancer>;

// Builds the experiment's model from the seed, trains it and returns the
// outcome. All steps use the same mini-batch. An epoch of a memory table has
// one mini-batch.
//
// The outcome has a duration for each epoch that was not skipped; all devices
// are idle at its start and end. Its memory is the peak over all epochs,
// including the mini-batch. If the balance is empty, the layers are cut by
// measured time.
//
// With a `world`, all ranks must call the function. An experiment without
// partitions runs on rank 0; the other ranks return an empty outcome. A
// pipeline then runs the fill-drain schedule as GPipe does: all forwards, then
// all backwards.
//
// Throws MissingDevices if there are more partitions than devices, or if there
// is a `world` whose size differs from the partitions. Throws what training
// throws, such as running out of memory. Threads: Only one call may run at a
// time, since the seed is set for the whole process.
Outcome measure(const Benchmark& benchmark, const Workload& workload,
                Experiment experiment, const MeasureOptions& options,
                Balancers* balancers);

}  // namespace gpipe::benchmarks
