// The rows of the table about the memory of Transformers.
#pragma once

#include "benchmarks/harness/benchmark.h"

namespace gpipe::benchmarks {

// Returns the benchmark of Transformers that grow with the number of devices:
// from one without a pipeline to 83.9 billion parameters in 128 partitions. It
// is table 1 of GPipe (arXiv 1811.06965). The published columns are:
// parameters, bytes of the model, and bytes of activations.
Benchmark transformer_memory_benchmark();

}  // namespace gpipe::benchmarks
