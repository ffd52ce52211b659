// The private piece of autograd graph of a cell: entry, leaves, backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <vector>

namespace gpipe {

// A tensor on the border of a cell, without graph, and whether the cell that
// made it would give it one. Undefined: a skip stashed as none, or an undefined
// element of a vector.
struct Crossing {
  at::Tensor tensor;
  bool requires_grad = false;
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
std::shared_ptr<torch::autograd::Node> begin_like(
    const torch::autograd::Node& node);

// The leaves (parameters, and whatever else a layer has captured) that the
// graph behind `exits` ends in, in the order of finding them. `entry`: where
// the graph begins, which is none of them.
std::vector<at::Tensor> find_leaves(
    const std::vector<torch::autograd::Edge>& exits,
    const std::vector<torch::autograd::Edge>& entry);

// Runs backward from `exits` with gradients `grads` (undefined: none) and
// returns the gradients that arrive at `targets`, undefined where nothing
// does or the target is empty. `.grad` of leaves is not touched, nor are
// their hooks called: those are for the sum over all cells.
// Threads: on CPU all of it runs on the calling thread.
std::vector<at::Tensor> run_backward(
    const std::vector<torch::autograd::Edge>& exits,
    std::vector<at::Tensor> grads,
    const std::vector<torch::autograd::Edge>& targets, bool keep_graph);

}  // namespace gpipe
