// The rows of the table on U-Net's training speed.
#pragma once

#include "benchmarks/harness/benchmark.h"

namespace gpipe::benchmarks {

// U-Net without a pipeline and in 1, 2, 4 and 8 partitions: torchgpipe's
// benchmark unet-speed (Kim et al., arXiv 2004.09910). Published: its samples
// per second and speed-ups.
Benchmark unet_speed_benchmark();

}  // namespace gpipe::benchmarks
