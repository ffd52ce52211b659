// The rows of the tables on the memory of AmoebaNets.
#pragma once

#include "benchmarks/harness/benchmark.h"

namespace gpipe::benchmarks {

// AmoebaNet-D (L, D) that grows with the devices, without a pipeline and in 1,
// 2, 4 and 8 partitions: torchgpipe's benchmark amoebanetd-memory (Kim et al.,
// arXiv 2004.09910) and table 1 of GPipe (arXiv 1811.06965). Published, of each
// of the two: parameters, the bytes of the model, and of activations.
Benchmark amoebanetd_memory_benchmark();

}  // namespace gpipe::benchmarks
