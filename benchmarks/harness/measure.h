// Training steps on the devices that there are.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <vector>

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/outcome.h"
#include "benchmarks/harness/trainee.h"

namespace gpipe::benchmarks {

struct MeasureOptions {
  std::vector<c10::Device> devices;  // one may come several times: it is shared
  int64_t epochs = 1;
  int64_t skip_epochs = 0;  // from the front: they warm up; < epochs
  uint64_t seed = 0;
};

// One per size of the model.
using Balancers = std::map<std::vector<int64_t>, Balancer>;

// Builds the experiment's model from the seed and trains it on one mini-batch,
// made once: an epoch is as many samples as the workload says or, of a memory
// table, one mini-batch. The outcome has a duration per epoch that was not
// skipped, with all devices idle at its start and end, and the memory that the
// devices held at most in any of the epochs, the mini-batch with it. An empty
// balance becomes the cut by measured time.
//
// Errors: MissingDevices for more partitions than devices; whatever training
// throws, running out of memory among it. Threads: one at a time; the seed is
// set for the whole process.
Outcome measure(const Benchmark& benchmark, const Workload& workload,
                Experiment experiment, const MeasureOptions& options,
                Balancers* balancers);

}  // namespace gpipe::benchmarks
