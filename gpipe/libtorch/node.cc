#include "gpipe/libtorch/node.h"

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

}  // namespace gpipe::internal
