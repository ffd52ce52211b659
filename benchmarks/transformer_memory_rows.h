// The rows of the table on the memory of Transformers.
#pragma once

#include "benchmarks/harness/benchmark.h"

namespace gpipe::benchmarks {

// Transformers that grow with the devices, from one without a pipeline to 83.9
// billion parameters in 128 partitions: table 1 of GPipe (arXiv 1811.06965).
// Published: parameters, the bytes of the model, and of activations.
Benchmark transformer_memory_benchmark();

}  // namespace gpipe::benchmarks
