#include "gpipe/runtime/autograd/graph.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// The node at which the graph of a cell begins. It is not run there: the engine
// returns the gradients that arrive here as results.
struct Begin : public Node {
  using Node::Node;
  variable_list apply(variable_list&& grads) override {
    return std::move(grads);
  }
  std::string name() const override { return "gpipe::Begin"; }
  void add_input_of(const Edge& edge) {
    input_metadata_.push_back(edge.function->input_metadata(edge.input_nr));
  }
};

// Redirects edges to leaves to nodes of this thread while in scope. These nodes
// pass the gradients to a sink. The engine runs them, because end() is among
// its targets.
//
// The leaves' own nodes cannot be used, for two reasons. The engine calls the
// hooks of a leaf whenever a gradient arrives, even if it only returns the
// gradient as a result. And it runs a leaf's node on the stream on which the
// node was made, which is the user's stream; workers of one device would wait
// for each other there.
class ToSink {
 public:
  ToSink(edge_list& roots, const Leaves& leaves,
         const std::vector<bool>& wanted, const LeafSink& sink)
      : end_(make_node<Begin>()) {
    end_->add_input_metadata(Node::undefined_input());
    std::vector<NodePtr> sinks(leaves.tensors.size());
    for (const Leaves::LeafEdge& leaf_edge : leaves.leaf_edges) {
      if (!wanted[leaf_edge.leaf]) continue;
      empty_ = false;
      NodePtr& node = sinks[leaf_edge.leaf];
      if (!node) {
        node = make_node<Sink>(sink, leaf_edge.leaf, end());
        node->add_input_metadata(leaves.tensors[leaf_edge.leaf]);
      }
      if (!leaf_edge.node) {
        const auto leaf = torch::autograd::impl::gradient_edge(
            leaves.tensors[leaf_edge.leaf]);
        for (Edge& root : roots) {
          if (root.function == leaf.function) root.function = node;
        }
        continue;
      }
      Edge& edge = leaf_edge.node->next_edges()[leaf_edge.edge];
      if (!edge.is_valid()) continue;
      diverted_.emplace_back(&edge, edge.function);
      edge.function = node;
    }
  }
  ~ToSink() {
    for (auto& [edge, leaf] : diverted_) edge->function = std::move(leaf);
  }
  ToSink(const ToSink&) = delete;
  ToSink& operator=(const ToSink&) = delete;

  Edge end() const { return Edge(end_, 0); }
  // Returns whether no leaf is wanted.
  bool empty() const { return empty_; }

 private:
  struct Sink : public Node {
    // Runs as early as the engine can, like the node of a leaf.
    Sink(const LeafSink& sink, std::size_t leaf, Edge end)
        : Node(std::numeric_limits<uint64_t>::max(), {std::move(end)}),
          sink(sink),
          leaf(leaf) {}
    variable_list apply(variable_list&& grads) override {
      if (grads[0].defined()) sink(leaf, std::move(grads[0]));
      return {at::Tensor()};
    }
    std::string name() const override { return "gpipe::Sink"; }

    const LeafSink& sink;
    const std::size_t leaf;
  };

  const NodePtr end_;
  bool empty_ = true;
  std::vector<std::pair<Edge*, NodePtr>> diverted_;
};

// The nodes that a walk of a graph has visited, each with the number of its
// leaf. Each cell walks its graph, so the table is kept from walk to walk.
class Seen {
 public:
  static constexpr std::size_t kNoLeaf =
      std::numeric_limits<std::size_t>::max();

  void clear() {
    ++walk_;
    size_ = 0;
  }

  // Returns a pointer to the number of the node's leaf, valid until the next
  // insert, and whether the node is new. The number is kNoLeaf for a new node.
  std::pair<std::size_t*, bool> insert(const Node* node) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slot_of(node);
    if (slot.walk == walk_) return {&slot.leaf, false};
    slot = {node, walk_, kNoLeaf};
    ++size_;
    return {&slot.leaf, true};
  }

 private:
  struct Slot {
    const Node* node = nullptr;
    uint64_t walk = 0;
    std::size_t leaf = kNoLeaf;
  };

  // Returns the slot of `node`, or a free slot for it.
  Slot& slot_of(const Node* node) {
    const std::size_t mask = slots_.size() - 1;
    // Multiplication by the golden ratio spreads addresses, whose low bits are
    // similar.
    std::size_t k =
        (reinterpret_cast<std::uintptr_t>(node) * 0x9e3779b97f4a7c15U) >> 32;
    for (k &= mask; slots_[k].walk == walk_ && slots_[k].node != node;) {
      k = (k + 1) & mask;
    }
    return slots_[k];
  }

  void grow() {
    const std::vector<Slot> before = std::exchange(
        slots_,
        std::vector<Slot>(std::max<std::size_t>(256, 2 * slots_.size())));
    for (const Slot& slot : before) {
      if (slot.walk == walk_) slot_of(slot.node) = slot;
    }
  }

  std::vector<Slot> slots_;  // size is a power of 2
  std::size_t size_ = 0;
  uint64_t walk_ = 1;  // slots of other walks are free
};

// Copies the exits that have a graph and a gradient to `roots`.
void take_roots(const edge_list& output_edges, std::vector<at::Tensor> grads,
                edge_list& roots, variable_list& root_grads) {
  for (std::size_t k = 0; k < output_edges.size(); ++k) {
    if (!output_edges[k].is_valid() || !grads[k].defined()) continue;
    roots.push_back(output_edges[k]);
    root_grads.push_back(std::move(grads[k]));
  }
}

// Runs the engine. Returns the gradients that arrive at `targets`, which are
// the first of `wanted`.
std::vector<at::Tensor> execute(const edge_list& roots,
                                const variable_list& root_grads,
                                const edge_list& targets,
                                const edge_list& wanted, bool keep_graph) {
  auto found = torch::autograd::Engine::get_default_engine().execute(
      roots, root_grads, keep_graph, /*create_graph=*/false,
      /*accumulate_grad=*/false, wanted);
  std::vector<at::Tensor> result(targets.size());
  std::size_t next = 0;
  for (std::size_t k = 0; k < targets.size(); ++k) {
    if (targets[k].is_valid()) result[k] = std::move(found[next++]);
  }
  return result;
}

}  // namespace

GraphInputs::GraphInputs(const std::vector<Activation>& inputs, bool leaf) {
  tensors_.reserve(inputs.size());
  edges_.resize(inputs.size());
  NodePtr begin;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const Activation& input = inputs[k];
    if (!input.tensor.defined() || !c10::GradMode::is_enabled() ||
        !input.requires_grad) {
      tensors_.push_back(input.tensor.defined() ? input.tensor.detach()
                                                : input.tensor);
      continue;
    }
    at::Tensor tensor = input.tensor.detach();
    if (leaf) {
      tensor.requires_grad_();
    } else {
      if (!begin) begin = make_node<Begin>();
      torch::autograd::create_gradient_edge(tensor, begin);
    }
    edges_[k] = torch::autograd::impl::gradient_edge(tensor);
    tensors_.push_back(std::move(tensor));
  }
}

Activation without_graph(const at::Tensor& output) {
  if (!output.defined()) return {};
  // Of the input, or of a parameter or a captured tensor.
  check_no_tangent(output, "an output of the layers");
  return {output.detach(), output.requires_grad(), /*shared=*/false};
}

Edge gradient_edge(const at::Tensor& output) {
  return output.defined() && output.requires_grad()
             ? torch::autograd::impl::gradient_edge(output)
             : Edge();
}

NodePtr stand_in_for(const Edge& edge, uint64_t order) {
  auto begin = make_node<Begin>(order);
  begin->add_input_of(edge);
  return begin;
}

Leaves find_leaves(const edge_list& output_edges,
                   const edge_list& input_edges) {
  Leaves leaves;
  thread_local Seen seen;
  thread_local std::vector<Node*> stack;
  seen.clear();
  stack.clear();
  const uint64_t here = at::RecordFunction::currentThreadId();
  for (const Edge& edge : input_edges) seen.insert(edge.function.get());
  const auto visit = [&](const Edge& edge, Node* from, std::size_t index) {
    Node* node = edge.function.get();
    if (!node) return;
    const auto [leaf, is_new] = seen.insert(node);
    if (is_new) {
      // dynamic_cast is expensive; only leaf nodes lack next edges.
      auto* sink = node->num_outputs() == 0
                       ? dynamic_cast<torch::autograd::AccumulateGrad*>(node)
                       : nullptr;
      if (sink) {
        *leaf = leaves.tensors.size();
        leaves.tensors.push_back(sink->variable);
      } else {
        stack.push_back(node);
        if (node->num_outputs() == 0 && dynamic_cast<Begin*>(node)) {
          leaves.reaches_other_input = true;
        }
        if (node->thread_id() != here) {
          const bool is_own = from && from->thread_id() == here;
          leaves.foreign.push_back(
              {edge.function, is_own ? std::make_optional(from->sequence_nr())
                                     : std::nullopt});
        }
      }
    }
    if (*leaf != Seen::kNoLeaf)
      leaves.leaf_edges.push_back({from, index, *leaf});
  };
  for (const Edge& edge : output_edges) visit(edge, nullptr, 0);
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    const edge_list& edges = node->next_edges();
    for (std::size_t k = 0; k < edges.size(); ++k) visit(edges[k], node, k);
  }
  return leaves;
}

const Node* user_of_other_input(const edge_list& output_edges,
                                const edge_list& input_edges, uint64_t begin) {
  // Walks from `roots`. Returns the first node for which `use` returns true.
  const auto walk = [&](const edge_list& roots, auto use) -> const Node* {
    std::unordered_set<const Node*> seen;
    std::vector<const Node*> stack;
    for (const Edge& edge : input_edges) seen.insert(edge.function.get());
    const auto visit = [&](const edge_list& edges) {
      for (const Edge& edge : edges) {
        const Node* const node = edge.function.get();
        if (node && seen.insert(node).second) stack.push_back(node);
      }
    };
    visit(roots);
    while (!stack.empty()) {
      const Node* const node = stack.back();
      stack.pop_back();
      if (use(*node)) return node;
      visit(node->next_edges());
    }
    return nullptr;
  };
  return walk(output_edges, [&](const Node& node) {
    if (node.sequence_nr() < begin) return false;
    for (const Edge& edge : node.next_edges()) {
      if (!edge.is_valid() || edge.function->sequence_nr() >= begin) continue;
      const auto is_input = [](const Node& each) {
        return dynamic_cast<const Begin*>(&each) != nullptr;
      };
      if (walk({edge}, is_input)) return true;
    }
    return false;
  });
}

std::vector<at::Tensor> run_backward(const edge_list& output_edges,
                                     std::vector<at::Tensor> grads,
                                     const edge_list& targets, bool keep_graph,
                                     const Leaves& leaves,
                                     const std::vector<bool>& leaf_wanted,
                                     const LeafSink& sink) {
  edge_list roots, wanted;
  variable_list root_grads;
  take_roots(output_edges, std::move(grads), roots, root_grads);
  for (const Edge& edge : targets) {
    if (edge.is_valid()) wanted.push_back(edge);
  }
  if (roots.empty()) return std::vector<at::Tensor>(targets.size());
  const ToSink to_sink(roots, leaves, leaf_wanted, sink);
  if (!to_sink.empty()) wanted.push_back(to_sink.end());
  if (wanted.empty()) return std::vector<at::Tensor>(targets.size());
  return execute(roots, root_grads, targets, wanted, keep_graph);
}

namespace {

// A node whose backward returns `grads`: the root from which the engine starts.
struct Source : public torch::autograd::Node {
  Source(torch::autograd::edge_list edges, std::vector<at::Tensor> grads)
      : Node(std::move(edges)), grads(std::move(grads)) {}
  torch::autograd::variable_list apply(
      torch::autograd::variable_list&&) override {
    return std::move(grads);
  }
  std::string name() const override { return "gpipe::TrainStep"; }

  std::vector<at::Tensor> grads;
};

}  // namespace

void accumulate(std::vector<torch::autograd::Edge> edges,
                std::vector<at::Tensor> grads) {
  torch::autograd::edge_list targets;
  std::vector<at::Tensor> given;
  for (std::size_t k = 0; k < edges.size(); ++k) {
    if (!grads[k].defined()) continue;
    targets.push_back(std::move(edges[k]));
    given.push_back(std::move(grads[k]));
  }
  if (targets.empty()) return;
  const at::Tensor start = at::empty({0});
  const NodePtr source =
      make_node<Source>(std::move(targets), std::move(given));
  source->add_input_metadata(start);
  torch::autograd::Engine::get_default_engine().execute(
      {torch::autograd::Edge(source, 0)}, {start}, /*keep_graph=*/false,
      /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace gpipe::internal
