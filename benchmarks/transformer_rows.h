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

// Transformer-L of the size, with feed-forward layers four times as wide and
// heads of 64, as in GPipe's table 1.
torch::nn::Sequential transformer_of(const Experiment& experiment);

// As equal numbers of the `blocks` as there can be, for 1 to `blocks`
// partitions: the larger ones first, since the last one has the output, too.
// The papers do not give theirs.
std::vector<int64_t> even_balance(int64_t blocks, int64_t partitions);

}  // namespace gpipe::benchmarks
