// The backward of a piece of autograd graph in two parts: first what others
// wait for, the gradients of its input; later those of its weights.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <vector>

#include "gpipe/runtime/graph.h"

namespace gpipe {

// The idea is that of zero-bubble schedules (arXiv 2401.10241), for any graph.
// A matrix product or a convolution on the way from the exits to the input
// computes two gradients, of its input and of its weights, which cost about the
// same and have nothing in common but the gradient that comes in. The input
// part leaves the weights' one out and notes what came in; the weight part runs
// just these operators again, for the other gradient. Everything else (sums,
// norms, activations) runs once, in the input part, weights included: its
// gradients come together. So the two parts do the work of the whole, and give
// its bits wherever each weight has one use; the uses of a weight with several
// may be summed in another order.
//
// A custom torch::autograd::Function is run once, in the input part.
//
// Threads: those of the cell. On CPU all of it runs on the calling thread.
class SplitBackward {
 public:
  // `exits`, `entry`, `leaves`: the ends of the graph, see graph.h; the graph
  // must be used by nobody else, and for nothing else than the two parts. Empty
  // edges in `entry` are not wanted. If nothing is
  // wanted of `entry`, `inner` stands for it: edges inside of the graph that
  // divide it into two parts that take some time each; may be empty too, then
  // all is left for the weight part.
  SplitBackward(std::vector<torch::autograd::Edge> exits,
                std::vector<torch::autograd::Edge> entry,
                std::vector<torch::autograd::Edge> inner, Leaves leaves);
  ~SplitBackward();
  SplitBackward(SplitBackward&&) noexcept;
  SplitBackward& operator=(SplitBackward&&) noexcept;

  // The gradients that arrive at the entry. Saved tensors that the weight part
  // does not need are freed.
  std::vector<at::Tensor> input_part(std::vector<at::Tensor> grads);

  // The gradients of the leaves, one after the other: a leaf with several uses
  // may come several times. Frees the graph.
  void weight_part(const LeafSink& sink);

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

}  // namespace gpipe
