// A cell of AmoebaNet as a layer.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <tuple>

namespace gpipe::models::amoebanet {

// What a cell passes on: its output, and what it got from the previous cell.
using States = std::tuple<torch::Tensor, torch::Tensor>;

struct Cell {
  int64_t channels;              // of each operation, a multiple of 4
  int64_t previous_channels;     // of the first state that comes in
  int64_t older_channels;        // of the second
  bool first = false;            // takes a torch::Tensor, for both states
  bool reduction = false;        // halves height and width
  bool after_reduction = false;  // the second state is twice as large
  bool true_max_pool = false;    // see AmoebaNetOptions
};

// Channels of a cell's output. Threads: pure function.
int64_t output_channels(const Cell& cell);

// Appends a layer that takes and returns States.
//
// It brings both states to `channels` and to the size of the first ("reduce1",
// "reduce2"), applies the operations of the genotype ("operations") to pairs of
// states, each sum being one more state, and concatenates some of them. The
// weights are drawn from LibTorch's default generator, in this order.
//
// Errors: c10::Error for a name that `model` has already.
// Threads: any, while no other one uses `model`.
void append_cell(torch::nn::Sequential& model, const std::string& name,
                 const Cell& cell);

}  // namespace gpipe::models::amoebanet
