// The rows of the tables about the memory of AmoebaNets.
#pragma once

#include "benchmarks/harness/benchmark.h"

namespace gpipe::benchmarks {

// Returns the benchmark of AmoebaNets-D (L, D) that grow with the number of
// devices: without a pipeline, and in 1, 2, 4 and 8 partitions. It is
// torchgpipe's benchmark amoebanetd-memory (Kim et al., arXiv 2004.09910) and
// table 1 of GPipe (arXiv 1811.06965). The published columns are, for both
// papers: parameters, bytes of the model, and bytes of activations.
Benchmark amoebanetd_memory_benchmark();

}  // namespace gpipe::benchmarks
