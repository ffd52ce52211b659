// The rows of the table on the memory of U-Nets.
#pragma once

#include "benchmarks/harness/benchmark.h"

namespace gpipe::benchmarks {

// U-Nets that grow with the devices, from one without a pipeline to 15.8
// billion parameters in 8 partitions: torchgpipe's benchmark unet-memory (Kim
// et al., arXiv 2004.09910). Published: its parameters and the bytes of all
// devices together.
Benchmark unet_memory_benchmark();

}  // namespace gpipe::benchmarks
