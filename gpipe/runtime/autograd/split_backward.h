// The backward of a piece of autograd graph in two parts: first the gradients
// of its input, for which other stages wait; later those of its weights.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <vector>

#include "gpipe/runtime/autograd/graph.h"

namespace gpipe::internal {

// A backward in two parts. The idea is that of zero-bubble schedules (arXiv
// 2401.10241), here for any graph.
//
// A matrix product or a convolution between the outputs and the input computes
// two gradients: of its input and of its weights. They cost about the same, and
// share only the incoming gradient. The input part leaves out the gradient of
// the weights and stores the incoming gradient. The weight part runs only these
// operators again, for the gradient of the weights. All other operators (sums,
// norms, activations) run once, in the input part, including their weights,
// because their gradients are computed together.
//
// So the two parts together do the work of the whole backward. They give the
// same bits: gradients that the whole backward adds up are added in the same
// order. For that, a gradient that the input part computes for a weight waits
// for the weight part if a product uses the same weight. (An exception: if
// layers have captured tensors with a graph that another thread has made, the
// gradients of three or more uses of one of its tensors may be added in another
// order.)
//
// A custom torch::autograd::Function runs once, in the input part.
//
// Threads: used by the cell's worker. On CPU all of it runs on the calling
// thread.
class SplitBackward {
 public:
  // `output_edges`, `input_edges`, `leaves`: the ends of the graph, see
  // graph.h. No other code may use the graph. Empty edges in `input_edges`: no
  // gradient is wanted. `inner`: used instead of `input_edges` if no edge of
  // `input_edges` is wanted: edges inside the graph that divide it into two
  // parts of some cost each. If `inner` is empty too, the weight part does
  // everything.
  SplitBackward(std::vector<torch::autograd::Edge> output_edges,
                std::vector<torch::autograd::Edge> input_edges,
                std::vector<torch::autograd::Edge> inner, Leaves leaves);
  ~SplitBackward();
  SplitBackward(SplitBackward&&) noexcept;
  SplitBackward& operator=(SplitBackward&&) noexcept;

  // Returns the gradients that arrive at `input_edges`. Frees saved tensors
  // that the weight part does not need.
  std::vector<at::Tensor> input_part(std::vector<at::Tensor> grads);

  // Passes the gradients of the leaves to `sink` one by one, each once. Frees
  // the graph.
  void weight_part(const LeafSink& sink);

 private:
  struct Graph;
  class Division;
  std::unique_ptr<Graph> graph_;
};

}  // namespace gpipe::internal
