// Training steps on the devices that there are.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/outcome.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/trainee.h"

namespace gpipe::benchmarks {

struct MeasureOptions {
  std::vector<c10::Device> devices;  // one may come several times: it is shared
  int64_t epochs = 1;
  int64_t skip_epochs = 0;  // from the front: they warm up; < epochs
  uint64_t seed = 0;
  // If a row with partitions takes a process for each.
  std::shared_ptr<Ranks> ranks;
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
// With ranks, all of them call; of a row without partitions the outcome of rank
// 0 counts, and the others' is empty.
//
// Errors: MissingDevices for more partitions than devices, or other than ranks;
// whatever training throws, running out of memory among it. Threads: one at a
// time; the seed is set for the whole process.
Outcome measure(const Benchmark& benchmark, const Workload& workload,
                Experiment experiment, const MeasureOptions& options,
                Balancers* balancers);

}  // namespace gpipe::benchmarks
