// The backward of a graph in two parts: first the gradients of its inputs, for
// which other stages wait; later those of its weights.
#include <ATen/Functions.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <typeindex>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "gpipe/libtorch/node.h"
#include "gpipe/runtime/autograd/graph.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Returns whether the node computes the gradient of its input and that of its
// weights by two separate operations.
bool is_product(const Node& node) {
  static const std::unordered_set<std::string> kNames = {
      "AddbmmBackward0",
      "AddmmBackward0",
      "AddmvBackward0",
      "BaddbmmBackward0",
      "BmmBackward0",
      "ConvolutionBackward0",
      "ConvolutionOverrideableBackward0",
      "LinearBackward0",
      "MkldnnLinearBackward0",
      "MmBackward0",
      "MvBackward0",
  };
  // name() makes a new string at each call.
  thread_local std::unordered_map<std::type_index, bool> known;
  const auto [input_edges, is_new] = known.emplace(typeid(node), false);
  if (is_new) input_edges->second = kNames.count(node.name()) > 0;
  return input_edges->second;
}

// A hook that stores the gradients that arrive at a node.
struct Note : public torch::autograd::FunctionPreHook {
  explicit Note(std::shared_ptr<variable_list> into) : into(std::move(into)) {}
  variable_list operator()(const variable_list& grads) override {
    *into = grads;
    return grads;
  }
  const std::shared_ptr<variable_list> into;
};

// The node from which the weight part starts. It gives up the gradients that
// it returns, so that each is freed as soon as it has been used.
struct Start : public Node {
  variable_list apply(variable_list&&) override { return std::move(grads); }
  std::string name() const override { return "gpipe::WeightPart"; }
  variable_list grads;
};

// A node that takes what the input of `edge` takes, where the input part may
// end. If a next edge is added, the node passes its gradient on.
struct StandIn : public Node {
  StandIn(const Edge& edge, uint64_t order) : Node(order) {
    input_metadata_.push_back(edge.function->input_metadata(edge.input_nr));
  }
  variable_list apply(variable_list&& grads) override {
    return std::move(grads);
  }
  std::string name() const override { return "gpipe::StandIn"; }
};

// Where gradients that come along edges from the outputs are, in the order of
// the engine: before those of all nodes.
constexpr uint64_t kFirst = std::numeric_limits<uint64_t>::max();

}  // namespace

// What the input part leaves for the weight part.
struct Subgraph::Split {
  // A product that runs twice. `later`: its edges to the weights, which are
  // removed for the input part. `grads`: the gradients that arrived in the
  // input part.
  struct Product {
    NodePtr node;
    edge_list later;
    std::shared_ptr<variable_list> grads;
    edge_list rest;  // its other edges, while the weight part runs
  };
  // A gradient that the input part computes, and that a node of the weight part
  // takes. `stand_in`: where it arrives in the input part; null if it is a
  // gradient of an output. `leaf`: if the node is that of a leaf.
  struct Held {
    NodePtr stand_in;
    Edge target;
    std::optional<std::size_t> leaf;
    at::Tensor grad;
  };

  std::vector<Product> products;
  std::vector<Held> held;
  // Gradients of leaves that only nodes of the input part lead to.
  std::vector<std::pair<std::size_t, at::Tensor>> early;
  std::vector<bool> is_late;  // by leaf: the others
};

// Divides the nodes of a graph between the two parts. The weight part runs the
// nodes to which an edge `later` of a product leads, the inner ends, nodes that
// the layers have not made, and all nodes behind these. The input part runs all
// other nodes. Only edges of nodes that the layers have made are changed: other
// cells have the others, too.
class Subgraph::Division {
 public:
  // `ends`: where the input part ends.
  Division(Subgraph& graph, const edge_list& ends, bool ends_are_inner)
      : graph_(graph), roots_(graph.roots_), split_(*graph.split_) {
    for (std::size_t k = 0; k < graph.leaves_.size(); ++k) {
      leaves_.emplace(gradient_edge(graph.leaves_[k]).function.get(), k);
    }
    split_.is_late.resize(graph.leaves_.size());
    visit(ends);
    if (ends_are_inner) {
      for (const Edge& end : ends) run_later(end);
    }
    run_captured_later(ends_are_inner);
    set_products_aside();
    hold_gradients();
  }

  // Frees the tensors that nodes of the input part have saved. Call after it.
  void release_variables() {
    std::unordered_set<const Node*> needed;
    for (const auto& product : split_.products) {
      needed.insert(product.node.get());
    }
    for (const auto& node : visited_) {
      const Place place = places_[node.get()];
      if (place.is_above && !place.is_later && !needed.count(node.get())) {
        node->release_variables();
      }
    }
  }

 private:
  // `is_above`: whether the node leads to an end, or is one. `is_later`:
  // whether the weight part runs it.
  struct Place {
    bool is_above = false;
    bool is_later = false;
  };
  // An edge from the input part to the weight part. `order`: the sequence
  // number of its node, see hold_gradients().
  struct Crossing {
    uint64_t order;
    Edge* edge;
  };
  // All crossings to one input of a node.
  struct Crossings {
    Edge target;
    std::vector<Crossing> edges;
    // The largest sequence number of the nodes of the weight part that lead to
    // the same input. 0: there is none.
    uint64_t latest = 0;
  };

  void visit(const edge_list& ends);
  void run_later(const Edge& edge);
  void run_captured_later(bool ends_are_inner);
  void set_products_aside();
  void hold_gradients();
  std::optional<std::size_t> leaf_of(const Node* node) const {
    const auto leaf = leaves_.find(node);
    return leaf == leaves_.end() ? std::nullopt : std::optional(leaf->second);
  }

  const Subgraph& graph_;
  edge_list& roots_;
  Split& split_;
  std::unordered_map<const Node*, std::size_t> leaves_;
  std::unordered_map<const Node*, Place> places_;
  // The nodes that the outputs lead to, up to the ends, in topological order (a
  // node before those that it leads to).
  std::vector<NodePtr> visited_;
  std::vector<const Node*> later_;
};

void Subgraph::Division::visit(const edge_list& ends) {
  // A node without entry is not visited yet. The graph has no cycles, so a node
  // is never met again while it is visited.
  for (const Edge& end : ends) places_[end.function.get()].is_above = true;
  struct Visit {
    NodePtr node;
    std::size_t next;
    bool is_above;
  };
  std::vector<Visit> stack;
  for (const Edge& root : roots_) {
    if (root.is_valid() && !places_.count(root.function.get())) {
      stack.push_back({root.function, 0, false});
    }
    while (!stack.empty()) {
      Visit& visit = stack.back();
      const edge_list& edges = visit.node->next_edges();
      if (visit.next == edges.size()) {
        places_[visit.node.get()].is_above = visit.is_above;
        visited_.push_back(std::move(visit.node));
        stack.pop_back();
        continue;
      }
      const Edge& edge = edges[visit.next];
      const auto known = places_.find(edge.function.get());
      if (edge.is_valid() && known == places_.end()) {
        // Continue with this edge afterwards.
        stack.push_back({edge.function, 0, false});
        continue;
      }
      ++visit.next;
      if (edge.is_valid() && known->second.is_above) visit.is_above = true;
    }
  }
  std::ranges::reverse(visited_);
}

// Has the weight part run the node that takes gradients of `edge`, and all
// nodes behind it.
void Subgraph::Division::run_later(const Edge& edge) {
  walk({edge}, [this](const Node& node) {
    if (std::exchange(places_[&node].is_later, true)) return false;
    if (const auto leaf = leaf_of(&node)) split_.is_late[*leaf] = true;
    later_.push_back(&node);
    return true;
  });
}

// Has the weight part run the nodes that the layers have not made. A node that
// leads to an input of the layers belongs to them, also if another thread has
// made it.
void Subgraph::Division::run_captured_later(bool ends_are_inner) {
  const auto add = [&](const edge_list& edges) {
    for (const Edge& edge : edges) {
      if (!edge.is_valid() || graph_.is_own(*edge.function)) continue;
      const Place place = places_[edge.function.get()];
      if (place.is_later || (place.is_above && !ends_are_inner)) continue;
      if (!leaf_of(edge.function.get())) run_later(edge);
    }
  };
  add(roots_);
  for (const auto& node : visited_) {
    if (graph_.is_own(*node)) add(node->next_edges());
  }
}

// Removes the edges to weights from the products that lead to an end, and
// stores the gradients that will arrive at these products.
void Subgraph::Division::set_products_aside() {
  for (const auto& node : visited_) {
    const Place place = places_[node.get()];
    if (!place.is_above || place.is_later || !graph_.is_own(*node) ||
        !is_product(*node)) {
      continue;
    }
    edge_list& now = node->next_edges();
    edge_list later(now.size());
    bool any = false;
    for (std::size_t k = 0; k < now.size(); ++k) {
      if (!now[k].is_valid() || places_[now[k].function.get()].is_above) {
        continue;
      }
      // An operator does not compute a gradient for a missing edge.
      std::swap(now[k], later[k]);
      run_later(later[k]);
      any = true;
    }
    if (!any) continue;
    split_.products.push_back(
        {node, std::move(later), std::make_shared<variable_list>(), {}});
    node->add_pre_hook(std::make_unique<Note>(split_.products.back().grads));
  }
}

// Directs edges from the input part to the weight part to stand-ins, where the
// input part ends.
//
// In a whole backward the engine runs the nodes in the order of their sequence
// numbers, the largest first, and adds gradients that arrive at one input of a
// node in this order. (A cell's nodes are made by one thread, so that a node
// has a larger number than those that it leads to. Only nodes that other
// threads have made may run in another order.) The engine orders the nodes of
// the weight part in the same way. So a stand-in passes the gradient on in the
// weight part, with the sequence number of the node from which the gradient
// came. Gradients that arrive before all those of the weight part share a
// stand-in, which adds them up in the input part.
void Subgraph::Division::hold_gradients() {
  std::vector<Crossings> all;  // in the order of visited_
  std::map<std::pair<const Node*, uint32_t>, std::size_t> places;
  const auto add = [&](Edge& edge, uint64_t order) {
    if (!edge.is_valid() || !places_[edge.function.get()].is_later) return;
    const auto [place, is_new] = places.emplace(
        std::pair(edge.function.get(), edge.input_nr), all.size());
    if (is_new) all.push_back({edge, {}});
    all[place->second].edges.push_back({order, &edge});
  };
  for (Edge& edge : roots_) add(edge, kFirst);
  for (const auto& node : visited_) {
    if (places_[node.get()].is_later) continue;
    for (Edge& edge : node->next_edges()) add(edge, node->sequence_nr());
  }
  if (all.empty()) return;

  const auto note = [&](const edge_list& edges, uint64_t order) {
    for (const Edge& edge : edges) {
      const auto place = places.find({edge.function.get(), edge.input_nr});
      if (place == places.end()) continue;
      uint64_t& latest = all[place->second].latest;
      latest = std::max(latest, order);
    }
  };
  for (const Node* node : later_) note(node->next_edges(), node->sequence_nr());
  for (const auto& product : split_.products) {
    note(product.later, product.node->sequence_nr());
  }
  for (Crossings& crossings : all) {
    const Edge& target = crossings.target;
    std::ranges::stable_sort(crossings.edges, std::greater(), &Crossing::order);
    NodePtr stand_in;
    for (const Crossing& crossing : crossings.edges) {
      if (!stand_in || crossing.order < crossings.latest) {
        stand_in = make_node<StandIn>(target, crossing.order);
        split_.held.push_back(
            {stand_in, target, leaf_of(target.function.get()), {}});
      }
      *crossing.edge = Edge(stand_in, 0);
    }
  }
  for (const auto& node : visited_) update_inner_edges(*node);
}

std::vector<at::Tensor> Subgraph::backward_input(
    std::vector<at::Tensor> grads) {
  split_ = std::make_shared<Split>();
  Split& split = *split_;
  const bool to_entry = wants_input();
  // Anomaly mode names the node that returns a NaN. That must be one of the
  // layers, and not Start, which would pass one on.
  if (torch::autograd::AnomalyMode::is_enabled()) {
    return backward(std::move(grads), /*keep_graph=*/false, to_entry,
                    std::vector<bool>(leaves_.size(), true),
                    [&](std::size_t leaf, at::Tensor grad) {
                      split.early.emplace_back(leaf, std::move(grad));
                    });
  }
  grads = in_root_order(std::move(grads));
  if (!to_entry && inner_.empty()) {
    split.is_late.resize(leaves_.size(), true);
    for (std::size_t k = 0; k < grads.size(); ++k) {
      split.held.push_back(
          {nullptr, roots_[k], std::nullopt, std::move(grads[k])});
    }
    for (const LeafEdge& each : leaf_edges_) {
      if (each.node) continue;
      const Edge leaf = gradient_edge(leaves_[each.leaf]);
      for (Split::Held& held : split.held) {
        if (held.target.function == leaf.function) held.leaf = each.leaf;
      }
    }
    return std::vector<at::Tensor>(input_edges_.size());
  }

  edge_list targets;
  for (const Edge& edge : to_entry ? input_edges_ : inner_) {
    if (edge.is_valid()) targets.push_back(edge);
  }
  Division division(*this, targets, /*ends_are_inner=*/!to_entry);
  if (!to_entry) targets.clear();
  for (const Split::Held& held : split.held) {
    targets.emplace_back(held.stand_in, 0);
  }
  std::vector<bool> wanted = split.is_late;
  wanted.flip();
  auto found = run(roots_, std::move(grads), targets, /*keep_graph=*/true,
                   wanted, [&](std::size_t leaf, at::Tensor grad) {
                     split.early.emplace_back(leaf, std::move(grad));
                   });
  division.release_variables();

  auto next = found.begin();
  std::vector<at::Tensor> entry_grads(input_edges_.size());
  for (std::size_t k = 0; k < input_edges_.size(); ++k) {
    if (input_edges_[k].is_valid()) entry_grads[k] = std::move(*next++);
  }
  for (Split::Held& held : split.held) held.grad = std::move(*next++);
  return entry_grads;
}

void Subgraph::backward_weight(const LeafSink& sink) {
  const auto consume = c10::make_scope_exit([this] { drop_graph(); });
  const auto split = std::move(split_);
  for (auto& [leaf, grad] : split->early) sink(leaf, std::move(grad));

  const auto start = make_node<Start>();
  edge_list& edges = start->next_edges();
  const auto add = [&](Edge edge, at::Tensor grad) {
    if (!grad.defined() || !edge.is_valid()) return;
    edges.push_back(std::move(edge));
    start->grads.push_back(std::move(grad));
  };
  for (Split::Held& held : split->held) {
    Node* from = start.get();
    std::size_t index = edges.size();
    if (held.stand_in) {
      held.stand_in->next_edges() = {held.target};
      from = held.stand_in.get();
      index = 0;
    }
    if (held.leaf && held.grad.defined()) {
      leaf_edges_.push_back({from, index, *held.leaf});
    }
    add(held.stand_in ? Edge(held.stand_in, 0) : held.target,
        std::move(held.grad));
  }
  for (Split::Product& product : split->products) {
    Node& node = *product.node;
    // `rest` keeps the other edges, so that the nodes that leaf_edges_
    // points to stay alive.
    product.rest = std::exchange(node.next_edges(), std::move(product.later));
    // They have been called in the input part.
    node.pre_hooks().clear();
    node.tensor_pre_hooks().clear();
    node.retains_grad_hooks().clear();
    node.post_hooks().clear();
    for (uint32_t k = 0; k < product.grads->size(); ++k) {
      add(Edge(product.node, k), std::move((*product.grads)[k]));
    }
    product.grads.reset();
  }
  if (edges.empty()) return;
  // On the device of the gradients, so that one thread of the engine runs all
  // nodes, in order.
  const at::Tensor nothing =
      at::empty({0}, at::TensorOptions().device(start->grads[0].device()));
  start->add_input_metadata(nothing);
  run({Edge(start, 0)}, {nothing}, {}, /*keep_graph=*/false, split->is_late,
      sink);
}

}  // namespace gpipe::internal
