// The private piece of autograd graph of a cell: entry, leaves, backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "gpipe/libtorch/node.h"

namespace gpipe {

// A tensor on the border of a cell, without graph, and whether the cell that
// made it would give it one. Undefined: a skip stashed as none, or an undefined
// element of a vector.
struct Crossing {
  at::Tensor tensor;
  bool requires_grad = false;
  // Another one has memory of it: see shared_memory.h.
  bool shared = false;
};

// The tensors that the layers of a cell get: aliases of those that crossed the
// border, which are where the cell's graph begins. Not leaves, so that a layer
// that works in place on its input does so as in the plain model.
//
// `leaf`: crossings that are leaves for the user, where in-place work is an
// error in the plain model too.
class Entry {
 public:
  Entry() = default;
  Entry(const std::vector<Crossing>& crossings, bool leaf);

  std::vector<at::Tensor>& tensors() { return tensors_; }
  // Where the gradient of each arrives; empty for those that want none.
  const std::vector<torch::autograd::Edge>& edges() const { return edges_; }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<torch::autograd::Edge> edges_;
};

// Takes an output of the cell across the border.
Crossing leave(const at::Tensor& output);

// Where the gradient of `output` begins; empty if it has no graph.
torch::autograd::Edge exit_of(const at::Tensor& output);

// A node that stands in for `node` where a graph is to end. Never run.
NodePtr begin_like(const torch::autograd::Node& node);

// The leaves (parameters, and whatever else a layer has captured) that a graph
// ends in, in the order of finding them, and the edges that lead there.
struct Leaves {
  struct Way {
    torch::autograd::Node* node;  // null: an exit is the leaf itself
    std::size_t edge;             // of the node
    std::size_t leaf;             // of `tensors`
  };
  std::vector<at::Tensor> tensors;
  std::vector<Way> ways;  // while the graph lives
  // Nodes on the way that another thread has made: of a tensor with a graph
  // that a layer has captured.
  std::vector<NodePtr> foreign;
};

// `entry`: where the graph behind `exits` begins, which is no leaf.
Leaves find_leaves(const std::vector<torch::autograd::Edge>& exits,
                   const std::vector<torch::autograd::Edge>& entry);

// Gets the gradient of leaf `leaf` as soon as it is complete, while the engine
// is still running. Threads: on an accelerator the engine's.
using LeafSink = std::function<void(std::size_t leaf, at::Tensor grad)>;

// Runs backward from `exits` with gradients `grads` (undefined: none) and
// returns the gradients that arrive at `targets`, undefined where nothing
// does or the target is empty. Those of `leaves`, which must be of this graph,
// go to `sink`, each as it comes, so that they are not held beside each other;
// `wanted`: by leaf. Ways whose edge has been taken away are left out.
//
// `.grad` of leaves is not touched, nor are their hooks called: those are for
// the sum over all cells.
// Threads: on CPU all of it runs on the calling thread.
std::vector<at::Tensor> run_backward(
    const std::vector<torch::autograd::Edge>& exits,
    std::vector<at::Tensor> grads,
    const std::vector<torch::autograd::Edge>& targets, bool keep_graph,
    const Leaves& leaves, const std::vector<bool>& wanted,
    const LeafSink& sink);

}  // namespace gpipe
