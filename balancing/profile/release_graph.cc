#include "balancing/profile/release_graph.h"

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <unordered_set>

namespace gpipe::balancing {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using NodeOwner = decltype(Edge::function);

// Returns the name of an operator. LibTorch wraps the type of a
// torch::autograd::Function in that of its node.
std::string operator_name(const Node& node) {
  constexpr std::string_view kWrapper = "torch::autograd::CppNode<";
  std::string name = node.name();
  const std::size_t begin = name.find(kWrapper);
  if (begin != std::string::npos && name.back() == '>') {
    name = name.substr(begin + kWrapper.size());
    name.pop_back();
  }
  return name;
}

std::vector<NodeOwner> nodes_of(const std::vector<Edge>& outputs) {
  std::vector<NodeOwner> nodes;
  std::unordered_set<const Node*> seen;
  const auto visit = [&](const Edge& edge) {
    Node* const node = edge.function.get();
    if (node && seen.insert(node).second) nodes.push_back(edge.function);
  };
  for (const Edge& edge : outputs) visit(edge);
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    // visit() may move the list.
    const Node* const node = nodes[k].get();
    for (const Edge& edge : node->next_edges()) visit(edge);
  }
  return nodes;
}

}  // namespace

void release_graph(std::vector<Edge> outputs,
                   const std::function<void(const std::string&)>& released) {
  std::vector<NodeOwner> nodes = nodes_of(outputs);
  // A node has a larger number than all nodes to which its gradients go.
  std::ranges::sort(nodes, {}, [](const NodeOwner& node) {
    return std::make_tuple(node->topological_nr(), node->sequence_nr());
  });
  outputs.clear();
  while (!nodes.empty()) {
    const std::string name = operator_name(*nodes.back());
    nodes.pop_back();
    released(name);
  }
}

}  // namespace gpipe::balancing
