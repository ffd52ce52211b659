// The rows of the tables about the training speed of ResNet-101.
#pragma once

#include "benchmarks/harness/experiment/benchmark.h"

namespace gpipe::benchmarks {

// Returns the benchmark of ResNet-101 without a pipeline and in 1, 2, 4 and 8
// partitions. It is torchgpipe's benchmark resnet101-speed (Kim et al., arXiv
// 2004.09910). The published columns are torchgpipe's samples per second and
// speed-ups, and GPipe's speed-ups (figure 3(b) of arXiv 1811.06965v4).
Benchmark resnet101_speed_benchmark();

}  // namespace gpipe::benchmarks
