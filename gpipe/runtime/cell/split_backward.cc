#include "gpipe/runtime/cell/split_backward.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>
#include <string>
#include <typeindex>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "gpipe/libtorch/node.h"
#include "gpipe/runtime/cell/graph.h"

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

// Runs a node as the engine does, but without hooks.
variable_list run(Node& node, variable_list grads) {
  variable_list found = node(std::move(grads));
  // Also sums over broadcast dimensions.
  torch::autograd::validate_outputs(
      node.next_edges(), found, [&](const std::string& problem) {
        return node.name() + " returned " + problem;
      });
  return found;
}

// Passes a gradient on through nodes with one input and one output, such as the
// transpose of a weight, as far as they lead. Updates `edge` and `grad`.
void follow(Edge& edge, at::Tensor& grad) {
  for (;;) {
    Node& node = *edge.function;
    const bool plain = node.num_inputs() == 1 && node.num_outputs() == 1 &&
                       node.next_edge(0).is_valid() &&
                       node.tensor_pre_hooks().empty() &&
                       node.retains_grad_hooks().empty() &&
                       node.pre_hooks().empty() && node.post_hooks().empty();
    if (!plain || !grad.defined()) return;
    grad = std::move(run(node, {std::move(grad)})[0]);
    edge = Edge(node.next_edge(0));
  }
}

// Finds the leaf at which an edge ends.
class LeafPlaces {
 public:
  explicit LeafPlaces(const Leaves& leaves) {
    for (std::size_t k = 0; k < leaves.tensors.size(); ++k) {
      places_.emplace(torch::autograd::impl::gradient_edge(leaves.tensors[k])
                          .function.get(),
                      k);
    }
  }
  std::optional<std::size_t> find(const Edge& edge) const {
    const auto place = places_.find(edge.function.get());
    if (place == places_.end()) return std::nullopt;
    return place->second;
  }

 private:
  std::unordered_map<const Node*, std::size_t> places_;
};

// A hook that stores the gradients that arrive at a node.
struct Note : public torch::autograd::FunctionPreHook {
  explicit Note(std::shared_ptr<variable_list> into) : into(std::move(into)) {}
  variable_list operator()(const variable_list& grads) override {
    *into = grads;
    return grads;
  }
  const std::shared_ptr<variable_list> into;
};

}  // namespace

struct SplitBackward::Graph {
  // A product that runs twice. `later`: its edges to the weights, which are
  // removed for the input part. `grads`: the gradients that arrived in the
  // input part.
  struct Product {
    NodePtr node;
    edge_list later;
    std::shared_ptr<variable_list> grads;
    edge_list rest;  // its other edges, while the weight part runs
  };

  edge_list output_edges, input_edges, inner;
  Leaves leaves;
  std::vector<Product> products;
  std::vector<at::Tensor> inner_grads;
  // Gradients of leaves from the input part.
  std::vector<std::pair<std::size_t, at::Tensor>> early;

  std::vector<NodePtr> nodes_above(const edge_list& ends) const;
  edge_list end_at_inner(const std::vector<NodePtr>& above);
  void set_products_aside(const std::vector<NodePtr>& above,
                          const edge_list& ends);
};

// Returns the nodes from which one of `ends` can be reached, without `ends`
// themselves, in topological order (a node before those that it leads to).
std::vector<NodePtr> SplitBackward::Graph::nodes_above(
    const edge_list& ends) const {
  // Whether an end can be reached from a visited node. A node without entry is
  // not visited yet. The graph has no cycles, so a node is never met again
  // while it is visited.
  std::unordered_map<const Node*, bool> above;
  for (const Edge& end : ends) above[end.function.get()] = true;
  struct Visit {
    NodePtr node;
    std::size_t next;
    bool is_above;
  };
  std::vector<Visit> stack;
  std::vector<NodePtr> found;
  for (const Edge& exit : output_edges) {
    if (exit.is_valid() && !above.count(exit.function.get())) {
      stack.push_back({exit.function, 0, false});
    }
    while (!stack.empty()) {
      Visit& visit = stack.back();
      const edge_list& edges = visit.node->next_edges();
      if (visit.next == edges.size()) {
        above[visit.node.get()] = visit.is_above;
        if (visit.is_above) found.push_back(std::move(visit.node));
        stack.pop_back();
        continue;
      }
      const Edge& edge = edges[visit.next];
      const auto known = above.find(edge.function.get());
      if (edge.is_valid() && known == above.end()) {
        // Continue with this edge afterwards.
        stack.push_back({edge.function, 0, false});
        continue;
      }
      ++visit.next;
      if (edge.is_valid() && known->second) visit.is_above = true;
    }
  }
  std::reverse(found.begin(), found.end());
  return found;
}

// Cuts the graph at the nodes of `inner`, so that these (and their hooks) do
// not run before the weight part. Returns the new ends. `inner` becomes the
// edges at the old place.
edge_list SplitBackward::Graph::end_at_inner(
    const std::vector<NodePtr>& above) {
  std::unordered_map<const Node*, NodePtr> stand_ins;
  edge_list old, ends;
  for (const Edge& edge : inner) {
    auto& stand_in = stand_ins[edge.function.get()];
    if (stand_in) continue;
    stand_in = stand_in_for(*edge.function);
    for (uint32_t k = 0; k < edge.function->num_inputs(); ++k) {
      old.emplace_back(edge.function, k);
      ends.emplace_back(stand_in, k);
    }
  }
  inner = std::move(old);
  const auto divert = [&](Edge& edge) {
    const auto found = stand_ins.find(edge.function.get());
    if (found != stand_ins.end()) edge.function = found->second;
  };
  for (Edge& exit : output_edges) divert(exit);
  for (const auto& node : above) {
    for (Edge& edge : node->next_edges()) divert(edge);
  }
  return ends;
}

// Removes the edges to weights from the products among `above`, and stores the
// gradients that will arrive at these products. `ends`: where the input part
// ends.
void SplitBackward::Graph::set_products_aside(const std::vector<NodePtr>& above,
                                              const edge_list& ends) {
  std::unordered_set<const Node*> on_the_way;
  for (const Edge& end : ends) on_the_way.insert(end.function.get());
  for (const auto& node : above) on_the_way.insert(node.get());
  for (const auto& node : above) {
    if (!is_product(*node)) continue;
    edge_list& now = node->next_edges();
    edge_list later(now.size());
    bool any = false;
    for (std::size_t k = 0; k < now.size(); ++k) {
      if (!now[k].is_valid() || on_the_way.count(now[k].function.get())) {
        continue;
      }
      // An operator does not compute a gradient for a missing edge.
      std::swap(now[k], later[k]);
      any = true;
    }
    if (!any) continue;
    products.push_back(
        {node, std::move(later), std::make_shared<variable_list>(), {}});
    node->add_pre_hook(std::make_unique<Note>(products.back().grads));
  }
}

SplitBackward::SplitBackward(edge_list output_edges, edge_list input_edges,
                             edge_list inner, Leaves leaves)
    : graph_(new Graph{std::move(output_edges),
                       std::move(input_edges),
                       std::move(inner),
                       std::move(leaves),
                       {},
                       {},
                       {}}) {}

SplitBackward::~SplitBackward() = default;
SplitBackward::SplitBackward(SplitBackward&&) noexcept = default;
SplitBackward& SplitBackward::operator=(SplitBackward&&) noexcept = default;

std::vector<at::Tensor> SplitBackward::input_part(
    std::vector<at::Tensor> grads) {
  Graph& graph = *graph_;
  const bool to_entry =
      std::any_of(graph.input_edges.begin(), graph.input_edges.end(),
                  [](const Edge& edge) { return edge.is_valid(); });
  if (!to_entry && graph.inner.empty()) {
    graph.inner = graph.output_edges;
    graph.inner_grads = std::move(grads);
    return std::vector<at::Tensor>(graph.input_edges.size());
  }

  edge_list targets;
  for (const Edge& edge : to_entry ? graph.input_edges : graph.inner) {
    if (edge.is_valid()) targets.push_back(edge);
  }
  const auto above = graph.nodes_above(targets);
  if (!to_entry) targets = graph.end_at_inner(above);
  graph.set_products_aside(above, targets);
  const std::vector<bool> all(graph.leaves.tensors.size(), true);
  auto found = run_backward(graph.output_edges, std::move(grads), targets,
                            /*keep_graph=*/true, graph.leaves, all,
                            [&](std::size_t leaf, at::Tensor grad) {
                              graph.early.emplace_back(leaf, std::move(grad));
                            });

  std::unordered_set<const Node*> needed;
  for (const auto& product : graph.products) needed.insert(product.node.get());
  for (const auto& node : above) {
    if (!needed.count(node.get())) node->release_variables();
  }
  std::vector<at::Tensor> entry_grads(graph.input_edges.size());
  if (!to_entry) {
    graph.inner_grads = std::move(found);
    return entry_grads;
  }
  auto next = found.begin();
  for (std::size_t k = 0; k < graph.input_edges.size(); ++k) {
    if (graph.input_edges[k].is_valid()) entry_grads[k] = std::move(*next++);
  }
  return entry_grads;
}

void SplitBackward::weight_part(const LeafSink& sink) {
  const std::unique_ptr<Graph> graph = std::move(graph_);
  for (auto& [leaf, grad] : graph->early) sink(leaf, std::move(grad));
  edge_list roots = std::move(graph->inner);
  std::vector<at::Tensor> grads = std::move(graph->inner_grads);
  roots.resize(grads.size());
  {
    const c10::AutoGradMode no_graph(false);
    const LeafPlaces places(graph->leaves);
    for (Graph::Product& product : graph->products) {
      const auto any =
          std::any_of(product.grads->begin(), product.grads->end(),
                      [](const at::Tensor& grad) { return grad.defined(); });
      if (!any) continue;
      // `rest` keeps the other edges, so that the nodes that Leaves::leaf_edges
      // points to stay alive.
      product.rest = std::exchange(product.node->next_edges(), product.later);
      variable_list found = run(*product.node, std::move(*product.grads));
      for (std::size_t k = 0; k < found.size(); ++k) {
        Edge edge = product.later[k];
        if (!edge.is_valid()) continue;
        at::Tensor grad = std::move(found[k]);
        follow(edge, grad);
        if (const auto leaf = places.find(edge)) {
          if (grad.defined()) sink(*leaf, std::move(grad));
        } else {
          roots.push_back(std::move(edge));
          grads.push_back(std::move(grad));
        }
      }
      product.node->release_variables();
      product.grads.reset();
    }
  }
  const std::vector<bool> all(graph->leaves.tensors.size(), true);
  run_backward(roots, std::move(grads), {}, /*keep_graph=*/false, graph->leaves,
               all, sink);
}

}  // namespace gpipe::internal
