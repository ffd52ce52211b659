// Nodes of an autograd graph, in every LibTorch that gpipe accepts.
//
// LibTorch 2.13 changed who owns a node: std::shared_ptr before,
// c10::intrusive_ptr since.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/headeronly/version.h>

#include <memory>
#include <utility>

namespace gpipe {

// Owns a node together with the edges that lead to it.
using NodePtr = decltype(torch::autograd::Edge::function);

// Returns a new node of type `T`, a subclass of torch::autograd::Node, that a
// NodePtr can own.
template <typename T, typename... Arguments>
auto make_node(Arguments&&... arguments) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  // deleteNode() deletes long chains of nodes without recursion.
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                            torch::autograd::deleteNode);
#else
  return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
#endif
}

}  // namespace gpipe
