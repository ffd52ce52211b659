// The common parts of the tables about GPipe's Transformers.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

#include "benchmarks/harness/experiment/experiment.h"

namespace gpipe::benchmarks {

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
