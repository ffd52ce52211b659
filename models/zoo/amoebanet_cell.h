// A cell of AmoebaNet as a layer.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <tuple>

namespace gpipe::models::amoebanet {

// The output of a layer: its result, and the result of the layer before it.
using States = std::tuple<torch::Tensor, torch::Tensor>;

struct Cell {
  int64_t channels;              // of each operation, a multiple of 4
  int64_t previous_channels;     // of the first input state
  int64_t older_channels;        // of the second input state
  bool first = false;            // takes one torch::Tensor as both states
  bool reduction = false;        // halves height and width
  bool after_reduction = false;  // the second state is twice as large
  bool true_max_pool = false;    // see AmoebaNetOptions
};

// Returns the number of channels of a cell's output.
//
// Threads: pure function.
int64_t output_channels(const Cell& cell);

// Appends a layer that takes and returns States.
//
// The layer brings both states to `channels` channels and to the size of the
// first ("reduce1", "reduce2"). It applies the operations of the genotype
// ("operations") to pairs of states; each sum is one more state. It
// concatenates some of the states. The weights are drawn from LibTorch's
// default generator, in this order.
//
// Throws c10::Error if `model` already has a layer called `name`.
// Threads: any thread may call this while no other thread uses `model`.
void append_cell(torch::nn::Sequential& model, const std::string& name,
                 const Cell& cell);

}  // namespace gpipe::models::amoebanet
