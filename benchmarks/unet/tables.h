// The tables about U-Nets.
#pragma once

#include "benchmarks/harness/experiment/benchmark.h"

namespace gpipe::benchmarks {

// Returns the benchmark of U-Nets that grow with the number of devices: from
// one without a pipeline to 15.8 billion parameters in 8 partitions. It is
// torchgpipe's benchmark unet-memory (Kim et al., arXiv 2004.09910). The
// published columns are the parameters and the sum of the bytes of all devices.
Benchmark unet_memory_benchmark();

// Returns the benchmark of U-Net without a pipeline and in 1, 2, 4 and 8
// partitions. It is torchgpipe's benchmark unet-speed (Kim et al., arXiv
// 2004.09910). The published columns are samples per second and speed-ups.
Benchmark unet_speed_benchmark();

}  // namespace gpipe::benchmarks
