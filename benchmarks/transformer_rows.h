// Rows of the tables on GPipe's Transformers.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

// The name of the column of Experiment::size, whose numbers transformer_of()
// takes.
constexpr char kTransformerSize[] = "(L, width, tokens, vocabulary)";

// All of a Transformer's size but its blocks.
struct TransformerShape {
  int64_t width = 0;
  int64_t tokens = 0;
  int64_t vocabulary = 0;
};

// Of GPipe's table 1.
constexpr TransformerShape kGPipeShape{2048, 1024, 32000};

// Experiment::size.
std::vector<int64_t> size_of(int64_t blocks, const TransformerShape& shape);

// Transformer-L of the size, with feed-forward layers four times as wide and
// heads of 64, as in GPipe's table 1.
torch::nn::Sequential transformer_of(const Experiment& experiment);

// As equal numbers of the `blocks` as there can be: the larger ones first,
// since the last one has the output, too. Where partitions are more than
// blocks, of the halves that these are made of; so up to 2 x `blocks` of them.
// The papers do not give theirs.
std::vector<int64_t> even_balance(int64_t blocks, int64_t partitions);

}  // namespace gpipe::benchmarks
