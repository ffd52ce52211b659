// The tables about Transformers.
#pragma once

#include "benchmarks/harness/experiment/benchmark.h"

namespace gpipe::benchmarks {

// Returns the benchmark of Transformers that grow with the number of devices:
// from one without a pipeline to 83.9 billion parameters in 128 partitions. It
// is table 1 of GPipe (arXiv 1811.06965). The published columns are:
// parameters, bytes of the model, and bytes of activations.
Benchmark transformer_memory_benchmark();

// Returns the benchmark of Transformer-48 in 2, 4 and 8 partitions with 1, 4
// and 32 micro-batches (table 2 of GPipe, arXiv 1811.06965), and of
// Transformer-24 on P100s (table 3 of GPipe). The published column is the
// speed-up.
Benchmark transformer_speed_benchmark();

}  // namespace gpipe::benchmarks
