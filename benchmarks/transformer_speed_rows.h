// The rows of the tables about the training speed of Transformers.
#pragma once

#include "benchmarks/harness/benchmark.h"

namespace gpipe::benchmarks {

// Returns the benchmark of Transformer-48 in 2, 4 and 8 partitions with 1, 4
// and 32 micro-batches (table 2 of GPipe, arXiv 1811.06965), and of
// Transformer-24 on P100s (table 3 of GPipe). The published column is the
// speed-up.
Benchmark transformer_speed_benchmark();

}  // namespace gpipe::benchmarks
