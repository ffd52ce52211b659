#include "gpipe/runtime/autograd/graph.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

[[noreturn]] void throw_lost() {
  TORCH_CHECK(
      false,
      "a backward() in a layer, or one of a tensor that a layer has kept, "
      "reaches the input of a partition, so that this gradient would be "
      "lost; let the layer compute from input.detach(), or return the "
      "tensor as an output");
}

// The node at which the graph of a cell begins. It is not run by the cell: the
// engine returns the gradients that arrive here as results.
struct Begin : public Node {
  using Node::Node;
  variable_list apply(variable_list&& /*grads*/) override { throw_lost(); }
  std::string name() const override { return "gpipe::Begin"; }
};

// What Begin does, for an input that is a leaf.
struct LostGradient : public torch::autograd::PostAccumulateGradHook {
  void operator()(const at::Tensor& /*leaf*/) override { throw_lost(); }
};

// The mark of an input that is a leaf.
struct InputMark : public torch::autograd::FunctionPreHook {
  variable_list operator()(const variable_list& grads) override {
    return grads;
  }
};

// Returns whether the graph of a cell begins at the node.
bool is_input(const Node& node) {
  if (node.num_outputs() != 0) return false;
  if (dynamic_cast<const Begin*>(&node)) return true;
  const auto* const leaf =
      dynamic_cast<const torch::autograd::AccumulateGrad*>(&node);
  return leaf && std::ranges::any_of(
                     torch::autograd::impl::hooks(leaf->variable),
                     [](const auto& hook) {
                       return dynamic_cast<const InputMark*>(hook.get());
                     });
}

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

}  // namespace

std::vector<at::Tensor> graph_inputs(const std::vector<Activation>& inputs,
                                     bool leaf) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(inputs.size());
  NodePtr begin;
  for (const Activation& input : inputs) {
    at::Tensor& tensor = tensors.emplace_back(input.tensor);
    if (!tensor.defined()) continue;
    tensor = tensor.detach();
    if (!input.requires_grad) continue;
    if (!c10::GradMode::is_enabled()) {
      // A weight that is passed on. LibTorch chooses the kernel of a product by
      // whether its factors require grad, also without grad mode.
      if (input.leaf && !tensor.is_inference()) tensor.requires_grad_();
      continue;
    }
    if (leaf || input.leaf) {
      tensor.requires_grad_();
      torch::autograd::impl::add_hook(tensor, std::make_unique<InputMark>());
      torch::autograd::impl::set_post_acc_grad_hooks(
          tensor, std::make_unique<LostGradient>());
    } else {
      if (!begin) begin = make_node<Begin>();
      torch::autograd::create_gradient_edge(tensor, begin);
    }
  }
  return tensors;
}

Activation without_graph(const at::Tensor& output) {
  if (!output.defined()) return {};
  // Of the input, or of a parameter or a captured tensor.
  check_no_tangent(output, "an output of the layers");
  return {output.detach(), output.requires_grad(), /*shared=*/false};
}

Edge gradient_edge(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad()
             ? torch::autograd::impl::gradient_edge(tensor)
             : Edge();
}

edge_list gradient_edges(const std::vector<at::Tensor>& tensors) {
  edge_list edges;
  edges.reserve(tensors.size());
  for (const at::Tensor& each : tensors) edges.push_back(gradient_edge(each));
  return edges;
}

// Redirects edges to leaves to nodes of this thread while in scope. These nodes
// pass the gradients to a sink. The engine runs them, because end() is among
// its targets.
//
// The leaves' own nodes cannot be used, for two reasons. The engine calls the
// hooks of a leaf whenever a gradient arrives, even if it only returns the
// gradient as a result. And it runs a leaf's node on the stream on which the
// node was made, which is the user's stream; workers of one device would wait
// for each other there.
class Subgraph::ToSink {
 public:
  ToSink(edge_list& roots, const Subgraph& graph,
         const std::vector<bool>& wanted, const LeafSink& sink)
      : end_(make_node<Begin>()) {
    end_->add_input_metadata(Node::undefined_input());
    std::vector<NodePtr> sinks(graph.leaves_.size());
    for (const LeafEdge& leaf_edge : graph.leaf_edges_) {
      if (!wanted[leaf_edge.leaf]) continue;
      empty_ = false;
      NodePtr& node = sinks[leaf_edge.leaf];
      if (!node) {
        node = make_node<Sink>(sink, mutex_, leaf_edge.leaf, end());
        node->add_input_metadata(graph.leaves_[leaf_edge.leaf]);
      }
      if (!leaf_edge.node) {
        const Edge leaf = gradient_edge(graph.leaves_[leaf_edge.leaf]);
        for (Edge& root : roots) {
          if (root.function == leaf.function) root.function = node;
        }
        continue;
      }
      Edge& edge = leaf_edge.node->next_edges()[leaf_edge.edge];
      if (!edge.is_valid()) continue;
      diverted_.push_back({leaf_edge.node, &edge, edge.function});
      edge.function = node;
      update_inner_edges(*leaf_edge.node);
    }
  }
  ~ToSink() {
    for (Diverted& each : diverted_) {
      each.edge->function = std::move(each.leaf);
      update_inner_edges(*each.from);
    }
  }
  ToSink(const ToSink&) = delete;
  ToSink& operator=(const ToSink&) = delete;

  Edge end() const { return Edge(end_, 0); }
  // Returns whether no leaf is wanted.
  bool empty() const { return empty_; }

 private:
  struct Sink : public Node {
    // Runs as early as the engine can, like the node of a leaf.
    Sink(const LeafSink& sink, std::mutex& mutex, std::size_t leaf, Edge end)
        : Node(std::numeric_limits<uint64_t>::max(), {std::move(end)}),
          sink(sink),
          mutex(mutex),
          leaf(leaf) {}
    variable_list apply(variable_list&& grads) override {
      if (!grads[0].defined()) return {at::Tensor()};
      // The engine has a thread for each device on which leaves are.
      std::lock_guard<std::mutex> lock(mutex);
      sink(leaf, std::move(grads[0]));
      return {at::Tensor()};
    }
    std::string name() const override { return "gpipe::Sink"; }

    const LeafSink& sink;
    std::mutex& mutex;
    const std::size_t leaf;
  };

  struct Diverted {
    Node* from;
    Edge* edge;
    NodePtr leaf;
  };

  const NodePtr end_;
  std::mutex mutex_;
  bool empty_ = true;
  std::vector<Diverted> diverted_;
};

Subgraph::Subgraph(uint64_t begin, edge_list input_edges,
                   const std::vector<at::Tensor>& outputs, std::size_t skips,
                   edge_list inner)
    : input_edges_(std::move(input_edges)),
      inner_(std::move(inner)),
      thread_(at::RecordFunction::currentThreadId()),
      begin_(begin),
      skips_(skips),
      roots_(gradient_edges(outputs)) {
  find_leaves();
  roots_ = in_root_order(std::move(roots_));
}

void Subgraph::find_leaves() {
  thread_local Seen seen;
  thread_local std::vector<Node*> stack;
  seen.clear();
  stack.clear();
  for (const Edge& edge : input_edges_) seen.insert(edge.function.get());
  const auto visit = [&](const Edge& edge, Node* from, std::size_t index) {
    Node* node = edge.function.get();
    if (!node) return;
    const auto [leaf, is_new] = seen.insert(node);
    if (is_new) {
      reaches_other_input_ = reaches_other_input_ || is_input(*node);
      // dynamic_cast is expensive; only leaf nodes lack next edges.
      auto* sink = node->num_outputs() == 0
                       ? dynamic_cast<torch::autograd::AccumulateGrad*>(node)
                       : nullptr;
      if (sink) {
        *leaf = leaves_.size();
        leaves_.push_back(sink->variable);
      } else {
        stack.push_back(node);
        if (node->thread_id() != thread_) {
          const bool from_here = from && from->thread_id() == thread_;
          foreign_.push_back(
              {edge.function, from_here
                                  ? std::make_optional(from->sequence_nr())
                                  : std::nullopt});
        }
      }
    }
    if (*leaf != Seen::kNoLeaf) leaf_edges_.push_back({from, index, *leaf});
  };
  for (const Edge& edge : roots_) visit(edge, nullptr, 0);
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    const edge_list& edges = node->next_edges();
    for (std::size_t k = 0; k < edges.size(); ++k) visit(edges[k], node, k);
  }
}

void Subgraph::number_as(const Subgraph& first) {
  const auto is_same = [](const at::Tensor& a, const at::Tensor& b) {
    return a.is_same(b);
  };
  if (std::ranges::equal(leaves_, first.leaves_, is_same)) return;
  std::unordered_map<const at::TensorImpl*, std::size_t> numbers;
  for (const at::Tensor& leaf : first.leaves_) {
    numbers.emplace(leaf.unsafeGetTensorImpl(), numbers.size());
  }
  std::erase_if(leaf_edges_, [&](LeafEdge& each) {
    const auto number = numbers.find(leaves_[each.leaf].unsafeGetTensorImpl());
    if (number == numbers.end()) return true;
    each.leaf = number->second;
    return false;
  });
  leaves_ = first.leaves_;
}

bool Subgraph::wants_input() const {
  return std::ranges::any_of(input_edges_,
                             [](const Edge& edge) { return edge.is_valid(); });
}

const Node* Subgraph::user_of_other_input() const {
  std::unordered_set<const Node*> inputs;
  for (const Edge& edge : input_edges_) inputs.insert(edge.function.get());
  const auto reaches_input = [&](const Edge& edge) {
    bool reaches = false;
    walk({edge}, [&](Node& node) {
      if (inputs.count(&node)) return false;
      reaches = reaches || is_input(node);
      return !reaches;
    });
    return reaches;
  };
  const Node* user = nullptr;
  walk(roots_, [&](Node& node) {
    if (user || inputs.count(&node)) return false;
    if (!is_own(node)) return true;
    if (std::ranges::any_of(node.next_edges(), [&](const Edge& edge) {
          return edge.is_valid() && !is_own(*edge.function) &&
                 reaches_input(edge);
        })) {
      user = &node;
    }
    return true;
  });
  return user;
}

std::vector<at::Tensor> Subgraph::backward(std::vector<at::Tensor> grads,
                                           bool keep_graph, bool want_input,
                                           const std::vector<bool>& leaf_wanted,
                                           const LeafSink& sink) {
  const edge_list targets =
      want_input ? input_edges_ : edge_list(input_edges_.size());
  if (!keep_graph) inner_.clear();
  const edge_list roots = keep_graph ? roots_ : std::exchange(roots_, {});
  auto found = run(roots, in_root_order(std::move(grads)), targets, keep_graph,
                   leaf_wanted, sink);
  if (!keep_graph) drop_graph();
  return found;
}

void Subgraph::drop_graph() {
  input_edges_.clear();
  inner_.clear();
  roots_.clear();
  leaf_edges_.clear();
}

std::vector<at::Tensor> Subgraph::run(const edge_list& all_roots,
                                      std::vector<at::Tensor> grads,
                                      const edge_list& targets, bool keep_graph,
                                      const std::vector<bool>& leaf_wanted,
                                      const LeafSink& sink) const {
  edge_list roots, wanted;
  variable_list root_grads;
  for (std::size_t k = 0; k < all_roots.size(); ++k) {
    if (!all_roots[k].is_valid() || !grads[k].defined()) continue;
    roots.push_back(all_roots[k]);
    root_grads.push_back(std::move(grads[k]));
  }
  for (const Edge& edge : targets) {
    if (edge.is_valid()) wanted.push_back(edge);
  }
  std::vector<at::Tensor> result(targets.size());
  if (roots.empty()) return result;
  const ToSink to_sink(roots, *this, leaf_wanted, sink);
  if (!to_sink.empty()) wanted.push_back(to_sink.end());
  if (wanted.empty()) return result;
  auto found = torch::autograd::Engine::get_default_engine().execute(
      roots, root_grads, keep_graph, /*create_graph=*/false,
      /*accumulate_grad=*/false, wanted);
  auto next = found.begin();
  for (std::size_t k = 0; k < targets.size(); ++k) {
    if (targets[k].is_valid()) result[k] = std::move(*next++);
  }
  return result;
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
