// The tables of the papers about speed and memory, one per program, and the
// parts that they share with the timeline and with tests.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "models/unet.h"

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

// The name of the column for Experiment::size. Its numbers are the arguments of
// unet_of().
constexpr char kUnetSize[] = "(B, C)";

// Returns a U-Net of depth 5 with B convolutions per cell and C channels at the
// first level, as in torchgpipe's benchmarks. (B, C) is `experiment.size`.
inline torch::nn::Sequential unet_of(const Experiment& experiment) {
  return models::unet(/*depth=*/5, experiment.size.at(0),
                      experiment.size.at(1));
}

// The name of the column for Experiment::size. Its numbers are the arguments of
// transformer_of().
constexpr char kTransformerSize[] = "(L, width, tokens, vocabulary)";

// The size of a Transformer, without the number of blocks.
struct TransformerShape {
  int64_t width = 0;
  int64_t tokens = 0;
  int64_t vocabulary = 0;
};

// The shape in GPipe's table 1.
constexpr TransformerShape kGPipeShape{2048, 1024, 32000};

// Returns Experiment::size for a Transformer.
std::vector<int64_t> size_of(int64_t blocks, const TransformerShape& shape);

// Returns the Transformer of `experiment.size`. Its feed-forward layers are
// four times as wide as the model and its heads have a width of 64, as in
// GPipe's table 1.
torch::nn::Sequential transformer_of(const Experiment& experiment);

// Returns a balance with numbers of blocks that are as equal as possible. The
// papers do not give their balances. Earlier partitions get the larger numbers,
// since the last partition also has the output layer. If there are more
// partitions than blocks, half blocks (attention or feed-forward) are
// distributed instead, so up to 2 x `blocks` partitions are possible.
std::vector<int64_t> even_balance(int64_t blocks, int64_t partitions);

}  // namespace gpipe::benchmarks
