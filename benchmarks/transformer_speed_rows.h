// The rows of the tables on Transformers' training speed.
#pragma once

#include "benchmarks/harness/benchmark.h"

namespace gpipe::benchmarks {

// Transformer-48 in 2, 4 and 8 partitions with 1, 4 and 32 micro-batches: table
// 2 of GPipe (arXiv 1811.06965); and Transformer-24 on P100s: its table 3.
// Published: speed-ups.
Benchmark transformer_speed_benchmark();

}  // namespace gpipe::benchmarks
