// The rows of the tables about the training speed of AmoebaNet-D.
#pragma once

#include "benchmarks/harness/benchmark.h"

namespace gpipe::benchmarks {

// Returns the benchmark of AmoebaNet-D in 2, 4 and 8 partitions with 1, 4 and
// 32 micro-batches. It is torchgpipe's benchmark amoebanetd-speed (Kim et al.,
// arXiv 2004.09910), table 2 of GPipe (arXiv 1811.06965) and, on P100s, table 3
// of GPipe. The published columns are torchgpipe's samples per second and
// speed-ups, and GPipe's speed-ups.
Benchmark amoebanetd_speed_benchmark();

}  // namespace gpipe::benchmarks
