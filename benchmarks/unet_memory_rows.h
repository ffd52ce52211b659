// The rows of the table about the memory of U-Nets.
#pragma once

#include "benchmarks/harness/benchmark.h"

namespace gpipe::benchmarks {

// Returns the benchmark of U-Nets that grow with the number of devices: from
// one without a pipeline to 15.8 billion parameters in 8 partitions. It is
// torchgpipe's benchmark unet-memory (Kim et al., arXiv 2004.09910). The
// published columns are the parameters and the sum of the bytes of all devices.
Benchmark unet_memory_benchmark();

}  // namespace gpipe::benchmarks
