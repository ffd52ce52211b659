// Nodes of an autograd graph, for every LibTorch version that gpipe accepts.
//
// LibTorch 2.13 changed the owning pointer of a node from std::shared_ptr to
// c10::intrusive_ptr.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/headeronly/version.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace gpipe::internal {

// An owning pointer to a node. The edges that lead to a node own it in the same
// way.
using NodePtr = decltype(torch::autograd::Edge::function);

// Returns a new node of type `T`, a subclass of torch::autograd::Node, that a
// NodePtr can own.
template <typename T, typename... Arguments>
auto make_node(Arguments&&... arguments) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  // deleteNode() frees long chains of nodes without recursion.
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                            torch::autograd::deleteNode);
#else
  return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
#endif
}

// Calls `visit` once for each node to which `roots` lead, as long as it returns
// true: behind other nodes the walk does not go on.
void walk(const std::vector<torch::autograd::Edge>& roots,
          const std::function<bool(torch::autograd::Node&)>& visit);

// Call after a change of `node.next_edges()`. The node of a change of a view in
// place runs another node inside it: that of the operator. LibTorch asserts
// that both have the same edges, except for the first one.
void update_inner_edges(torch::autograd::Node& node);

}  // namespace gpipe::internal
