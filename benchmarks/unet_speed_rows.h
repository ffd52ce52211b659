// The rows of the table about the training speed of U-Net.
#pragma once

#include "benchmarks/harness/benchmark.h"

namespace gpipe::benchmarks {

// Returns the benchmark of U-Net without a pipeline and in 1, 2, 4 and 8
// partitions. It is torchgpipe's benchmark unet-speed (Kim et al., arXiv
// 2004.09910). The published columns are samples per second and speed-ups.
Benchmark unet_speed_benchmark();

}  // namespace gpipe::benchmarks
