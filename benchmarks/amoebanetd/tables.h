// The tables about AmoebaNets.
#pragma once

#include "benchmarks/harness/experiment/benchmark.h"

namespace gpipe::benchmarks {

// Returns the benchmark of AmoebaNets-D (L, D) that grow with the number of
// devices: without a pipeline, and in 1, 2, 4 and 8 partitions. It is
// torchgpipe's benchmark amoebanetd-memory (Kim et al., arXiv 2004.09910) and
// table 1 of GPipe (arXiv 1811.06965). The published columns are, for both
// papers: parameters, bytes of the model, and bytes of activations.
Benchmark amoebanetd_memory_benchmark();

// Returns the benchmark of AmoebaNet-D in 2, 4 and 8 partitions with 1, 4 and
// 32 micro-batches. It is torchgpipe's benchmark amoebanetd-speed (Kim et al.,
// arXiv 2004.09910), table 2 of GPipe (arXiv 1811.06965) and, on P100s, table 3
// of GPipe. The published columns are torchgpipe's samples per second and
// speed-ups, and GPipe's speed-ups.
Benchmark amoebanetd_speed_benchmark();

}  // namespace gpipe::benchmarks
