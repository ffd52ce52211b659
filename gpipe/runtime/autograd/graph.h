// The piece of autograd graph of a cell: its entry, its leaves, its backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "gpipe/libtorch/node.h"

namespace gpipe::internal {

// Returns whether `tensor` is defined and has a tangent. Thread-safe.
inline bool has_tangent(const at::Tensor& tensor) {
  return tensor.defined() && tensor._fw_grad(/*level=*/0).defined();
}

// Throws c10::NotImplementedError if `tensor` has a tangent. `what`: the
// tensor, for the error. Thread-safe.
inline void check_no_tangent(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !has_tangent(tensor), what,
      " has a tangent (forward-mode AD), and a pipeline computes none. Run the "
      "torch::nn::Sequential that the pipeline was made of, which has the same "
      "parameters; or give the pipeline the primal, "
      "std::get<0>(torch::_unpack_dual(tensor, 0))");
}

// A tensor at the boundary of a cell, without graph. Undefined: a skip that was
// stashed as "no tensor", or an undefined element of a vector.
struct Activation {
  at::Tensor tensor;
  bool requires_grad = false;  // in the graph of the cell that made it
  // Whether another tensor shares its memory: see cell.h.
  bool shared = false;
  // The number of a tensor that is the same in all micro-batches, and crosses a
  // boundary once per step: 2 k for element k of the pipeline's input
  // (GPipeOptions::unsplit), 2 k + 1 for a parameter that goes along skip link
  // k, such as a tied weight. -1 for other tensors.
  int unsplit = -1;
};

// The input tensors of a cell's layers: aliases of the boundary tensors, at
// which the cell's graph begins. They are not leaves, so a layer can work in
// place on its input as in the plain model.
//
// `leaf`: the input tensors are leaves of the user's graph. Then they are
// leaves here too, because in-place work on them is an error in the plain
// model.
class GraphInputs {
 public:
  GraphInputs() = default;
  GraphInputs(const std::vector<Activation>& inputs, bool leaf);

  std::vector<at::Tensor>& tensors() { return tensors_; }
  // Returns the edge at which each tensor's gradient arrives; empty if no
  // gradient is wanted.
  const std::vector<torch::autograd::Edge>& edges() const { return edges_; }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<torch::autograd::Edge> edges_;
};

// Detaches an output of the cell, to pass it to other cells.
Activation without_graph(const at::Tensor& output);

// Returns the edge at which the gradient of `output` starts; empty if `output`
// has no graph.
torch::autograd::Edge gradient_edge(const at::Tensor& output);

// Returns a node with one input that takes what the input of `edge` takes. A
// graph may end there. If a next edge is added, the node passes its gradient
// on. `order`: its sequence number.
NodePtr stand_in_for(const torch::autograd::Edge& edge, uint64_t order);

// The leaves of a graph (parameters, and other tensors that layers have
// captured), in the order of the search, and the edges that lead to them.
struct Leaves {
  // An edge to a leaf.
  struct LeafEdge {
    torch::autograd::Node* node;  // null: an output is the leaf itself
    std::size_t edge;             // index among the node's edges
    std::size_t leaf;             // index in `tensors`
  };
  std::vector<at::Tensor> tensors;
  std::vector<LeafEdge> leaf_edges;  // valid while the graph lives
  // Whether the graph reaches an input of another cell (GraphInputs that are
  // not leaves). Its gradient would be lost.
  bool reaches_other_input = false;
  // A node of the graph that another thread has made. It belongs to a tensor
  // with a graph that a layer has captured.
  struct Foreign {
    NodePtr node;
    // The sequence number of the node of this thread that uses `node`, if one
    // does.
    std::optional<uint64_t> user;
  };
  std::vector<Foreign> foreign;
};

// Returns the leaves of the graph behind `output_edges`. `input_edges`: the
// edges at which the graph begins; they do not count as leaves.
Leaves find_leaves(const std::vector<torch::autograd::Edge>& output_edges,
                   const std::vector<torch::autograd::Edge>& input_edges);

// Returns the node of this graph, made on this thread at sequence number
// `begin` or later, that uses a tensor whose graph reaches an input of another
// cell. Returns null if there is none. For messages; `input_edges`: as above.
const torch::autograd::Node* user_of_other_input(
    const std::vector<torch::autograd::Edge>& output_edges,
    const std::vector<torch::autograd::Edge>& input_edges, uint64_t begin);

// Receives the gradient of leaf `leaf` as soon as it is complete, while the
// engine still runs. Threads: on an accelerator, the engine's thread.
using LeafSink = std::function<void(std::size_t leaf, at::Tensor grad)>;

// Runs backward from `output_edges` with gradients `grads` (undefined: none).
// Returns the gradients that arrive at `targets`, undefined where none arrives
// or the target is empty. `leaves`: the leaves of this graph. Their gradients
// go to `sink` one by one, so that they are not all held at the same time.
// `wanted`: by leaf. Leaf edges that were removed from the graph are skipped.
//
// `.grad` of leaves does not change, and hooks of leaves are not called,
// because they are for the sum over all cells.
// Threads: on CPU all of it runs on the calling thread.
std::vector<at::Tensor> run_backward(
    const std::vector<torch::autograd::Edge>& output_edges,
    std::vector<at::Tensor> grads,
    const std::vector<torch::autograd::Edge>& targets, bool keep_graph,
    const Leaves& leaves, const std::vector<bool>& wanted,
    const LeafSink& sink);

// Runs the autograd engine with one gradient of `grads` per edge of `edges`
// (see torch::autograd::impl::gradient_edge). As in any backward, the engine
// adds gradients to `.grad` of leaves, passes them on through the graphs of
// other tensors, and calls hooks. Undefined gradients are skipped.
//
// Throws whatever hooks and graphs throw. Threads: as Tensor::backward().
void accumulate(std::vector<torch::autograd::Edge> edges,
                std::vector<at::Tensor> grads);

}  // namespace gpipe::internal
