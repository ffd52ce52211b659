// The rows of the tables on AmoebaNet-D's training speed.
#pragma once

#include "benchmarks/harness/benchmark.h"

namespace gpipe::benchmarks {

// AmoebaNet-D in 2, 4 and 8 partitions with 1, 4 and 32 micro-batches:
// torchgpipe's benchmark amoebanetd-speed (Kim et al., arXiv 2004.09910) and
// table 2 of GPipe (arXiv 1811.06965); and GPipe's table 3, on P100s.
// Published: torchgpipe's samples per second and speed-ups, and GPipe's
// speed-ups.
Benchmark amoebanetd_speed_benchmark();

}  // namespace gpipe::benchmarks
