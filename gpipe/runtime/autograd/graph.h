// The autograd graph of a cell: its inputs, its leaves, its backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
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
  // Whether it was a leaf that requires grad there. In-place work on it is an
  // error in the plain model.
  bool leaf = false;
};

// Returns the input tensors of a cell's layers: aliases of the boundary
// tensors, at which the cell's graph begins. They are not leaves, so a layer
// can work in place on its input as in the plain model.
//
// `leaf`: the input tensors are leaves of the user's graph, as those with
// Activation::leaf are. Then they are leaves here too, because in-place work on
// them is an error in the plain model. A hook that does nothing marks them.
//
// A backward of other code that reaches an input, such as that of a tensor
// which a layer has kept, throws c10::Error, since the gradient would be lost.
std::vector<at::Tensor> graph_inputs(const std::vector<Activation>& inputs,
                                     bool leaf);

// Detaches an output of the cell, to pass it to other cells.
Activation without_graph(const at::Tensor& output);

// Returns the edge at which the gradient of `tensor` arrives; empty if it has
// no graph.
torch::autograd::Edge gradient_edge(const at::Tensor& tensor);
// Does the same for several tensors.
std::vector<torch::autograd::Edge> gradient_edges(
    const std::vector<at::Tensor>& tensors);

// Receives the gradient of leaf `leaf` as soon as it is complete, while the
// engine still runs. Threads: on accelerators those of the engine, one for each
// device that leaves are on, the CPU included; one call at a time.
using LeafSink = std::function<void(std::size_t leaf, at::Tensor grad)>;

// The graph of a cell: what autograd has recorded between the inputs and the
// outputs of some layers, with its leaves (parameters, and other tensors that
// layers have captured). Its backward runs as a whole or in two parts. Neither
// changes `.grad` of leaves nor calls their hooks, which are for the sum over
// all cells. The inputs and outputs themselves are not held. An operator that
// needs one in its backward holds it.
//
// Threads: used by the cell's worker. On CPU all of it runs on the calling
// thread.
class Subgraph {
 public:
  Subgraph() = default;
  // Finds the leaves. Call on the thread on which the layers have run.
  // `input_edges`: where gradients of the inputs arrive; empty edges: none is
  // wanted. `begin`: the sequence number of the thread when the layers began
  // (at::sequence_number::peek()). `skips`: how many of the outputs, the last
  // ones, are skip tensors. `inner`: used by backward_input() if no gradient of
  // an input is wanted: edges inside the graph that divide it into two parts of
  // some cost each.
  Subgraph(uint64_t begin, std::vector<torch::autograd::Edge> input_edges,
           const std::vector<at::Tensor>& outputs, std::size_t skips = 0,
           std::vector<torch::autograd::Edge> inner = {});

  // Returns the leaves in the order of the search. It stays the same when the
  // graph has been consumed.
  const std::vector<at::Tensor>& leaves() const { return leaves_; }
  // Gives leaves the numbers that they have in `first`, the graph of an earlier
  // run of the layers. Leaves that are not in it get no gradient.
  void number_as(const Subgraph& first);

  // Returns whether the gradient of an input is wanted.
  bool wants_input() const;

  // A node of the graph that another thread has made. It belongs to a tensor
  // with a graph that a layer has captured.
  struct Foreign {
    NodePtr node;
    // The sequence number of the node of this thread that uses `node`, if one
    // does.
    std::optional<uint64_t> user;
  };
  std::vector<Foreign> take_foreign() { return std::exchange(foreign_, {}); }

  // Returns whether the graph reaches an input of another cell
  // (graph_inputs()). Its gradient would be lost.
  bool reaches_other_input() const { return reaches_other_input_; }
  // Returns the node that the layers have made and that uses a tensor whose
  // graph reaches an input of another cell. Returns null if there is none. For
  // messages.
  const torch::autograd::Node* user_of_other_input() const;

  // Runs the backward with the gradients `grads` of the outputs (undefined:
  // none). Returns the gradients of the inputs, undefined where none arrives or
  // none is wanted. `want_input`: whether any is. Gradients of leaves go to
  // `sink` one by one, so that they are not all held at the same time, if
  // `leaf_wanted` is true. Consumes the graph unless `keep_graph`.
  std::vector<at::Tensor> backward(std::vector<at::Tensor> grads,
                                   bool keep_graph, bool want_input,
                                   const std::vector<bool>& leaf_wanted,
                                   const LeafSink& sink);

  // Run the backward in two parts. The idea is that of zero-bubble schedules
  // (arXiv 2401.10241), here for any graph. No other code may use the graph.
  //
  // A matrix product or a convolution between the outputs and the input
  // computes two gradients: of its input and of its weights. They cost about
  // the same, and share only the incoming gradient. The input part leaves out
  // the gradient of the weights and stores the incoming gradient. The weight
  // part runs only these operators again, for the gradient of the weights. All
  // other operators (sums, norms, activations) run once, in the input part,
  // including their weights, because their gradients are computed together. A
  // custom torch::autograd::Function also runs once, in the input part. Without
  // wanted inputs and inner edges, the weight part does everything. In
  // LibTorch's anomaly mode the input part does.
  //
  // So the two parts together do the work of the whole backward. They give the
  // same bits: gradients that the whole backward adds up are added in the same
  // order. For that, a gradient that the input part computes for a weight waits
  // for the weight part if a product uses the same weight. (An exception: if
  // layers have captured tensors with a graph that another thread has made, the
  // gradients of three or more uses of one of its tensors may be added in
  // another order.)
  //
  // backward_input() returns the gradients of the inputs. It frees saved
  // tensors that the weight part does not need. backward_weight() passes the
  // gradients of all leaves to `sink` one by one, each once, and consumes the
  // graph.
  std::vector<at::Tensor> backward_input(std::vector<at::Tensor> grads);
  void backward_weight(const LeafSink& sink);

  // Drops the graph. The leaves stay.
  void drop_graph();

 private:
  struct Split;
  class Division;
  class ToSink;

  // An edge to a leaf.
  struct LeafEdge {
    torch::autograd::Node* node;  // null: an output is the leaf itself
    std::size_t edge;             // index among the node's edges
    std::size_t leaf;             // index in `leaves_`
  };
  void find_leaves();
  // Returns whether the layers have made the node. Other nodes are those of
  // leaves, or belong to tensors that the layers have captured, or kept from an
  // earlier call: their edges stay as they are.
  bool is_own(const torch::autograd::Node& node) const {
    return node.num_outputs() > 0 && node.thread_id() == thread_ &&
           node.sequence_nr() >= begin_;
  }
  // Brings edges or gradients of the outputs into the order of `roots_`.
  template <typename T>
  std::vector<T> in_root_order(std::vector<T> all) const {
    std::reverse(all.end() - skips_, all.end());
    std::rotate(all.begin(), all.end() - skips_, all.end());
    return all;
  }
  // Runs the engine from `roots`. Returns the gradients that arrive at
  // `targets`. Leaf edges that were removed from the graph are skipped.
  std::vector<at::Tensor> run(const std::vector<torch::autograd::Edge>& roots,
                              std::vector<at::Tensor> grads,
                              const std::vector<torch::autograd::Edge>& targets,
                              bool keep_graph,
                              const std::vector<bool>& leaf_wanted,
                              const LeafSink& sink) const;

  std::vector<torch::autograd::Edge> input_edges_, inner_;
  uint64_t thread_ = 0, begin_ = 0;
  std::size_t skips_ = 0;
  // The edges at which gradients of the outputs start, in the order in which
  // the engine would reach them in the plain model, last consumer first (the
  // last skip tensor), so that sums over them have the same bits.
  std::vector<torch::autograd::Edge> roots_;
  std::vector<at::Tensor> leaves_;
  std::vector<LeafEdge> leaf_edges_;  // valid while the graph lives
  std::vector<Foreign> foreign_;
  bool reaches_other_input_ = false;
  std::shared_ptr<Split> split_;  // between the two parts of a backward
};

// Runs the autograd engine with one gradient of `grads` per edge of `edges`
// (see torch::autograd::impl::gradient_edge). As in any backward, the engine
// adds gradients to `.grad` of leaves, passes them on through the graphs of
// other tensors, and calls hooks. Undefined gradients are skipped.
//
// Throws whatever hooks and graphs throw. Threads: as Tensor::backward().
void accumulate(std::vector<torch::autograd::Edge> edges,
                std::vector<at::Tensor> grads);

}  // namespace gpipe::internal
