// The tables of the papers, one per program.
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

// Returns the benchmark of ResNet-101 without a pipeline and in 1, 2, 4 and 8
// partitions. It is torchgpipe's benchmark resnet101-speed (Kim et al., arXiv
// 2004.09910). The published columns are torchgpipe's samples per second and
// speed-ups, and GPipe's speed-ups (figure 3(b) of arXiv 1811.06965v4).
Benchmark resnet101_speed_benchmark();

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

// Returns the benchmark of U-Nets that grow with the number of devices: from
// one without a pipeline to 15.8 billion parameters in 8 partitions. It is
// torchgpipe's benchmark unet-memory (Kim et al., arXiv 2004.09910). The
// published columns are the parameters and the sum of the bytes of all devices.
Benchmark unet_memory_benchmark();

// Returns the benchmark of U-Net without a pipeline and in 1, 2, 4 and 8
// partitions. It is torchgpipe's benchmark unet-speed (Kim et al., arXiv
// 2004.09910). The published columns are samples per second and speed-ups.
Benchmark unet_speed_benchmark();

}  // namespace gpipe::benchmarks
