#include "gpipe/libtorch/node.h"

#include <torch/csrc/autograd/functions/tensor.h>

#include <cstddef>
#include <typeinfo>
#include <unordered_set>

namespace gpipe::internal {

void walk(const std::vector<torch::autograd::Edge>& roots,
          const std::function<bool(torch::autograd::Node&)>& visit) {
  using torch::autograd::Node;
  std::unordered_set<const Node*> seen;
  std::vector<Node*> stack;
  const auto add = [&](const std::vector<torch::autograd::Edge>& edges) {
    for (const torch::autograd::Edge& edge : edges) {
      Node* const node = edge.function.get();
      if (node && seen.insert(node).second) stack.push_back(node);
    }
  };
  add(roots);
  while (!stack.empty()) {
    Node* const node = stack.back();
    stack.pop_back();
    if (visit(*node)) add(node->next_edges());
  }
}

void update_inner_edges(torch::autograd::Node& node) {
  using torch::autograd::CopySlices;
  if (typeid(node) != typeid(CopySlices)) return;
  const auto& inner = static_cast<CopySlices&>(node).fn;
  if (!inner) return;  // released
  for (std::size_t k = 1; k < node.next_edges().size(); ++k) {
    inner->next_edges()[k] = node.next_edges()[k];
  }
}

}  // namespace gpipe::internal
