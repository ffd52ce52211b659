// Memory of a training step, without memory.
#pragma once

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/outcome.h"

namespace gpipe::benchmarks {

// Builds the experiment's model on the meta device, with a device for each
// partition, and trains it for a step: LibTorch's operators, autograd graph
// and optimizer, on tensors that have a shape and no memory, and are counted by
// device. The balance must be given. Cells run one at a time in the schedule's
// order, so that the figures repeat to the byte.
//
// Bytes are what tensors ask for on a CPU: what an accelerator's kernels use
// for themselves, and what its allocator rounds up, comes on top.
Outcome dry_run(const Benchmark& benchmark, const Workload& workload,
                const Experiment& experiment);

}  // namespace gpipe::benchmarks
