// Represents a whole computation by one node of the caller's autograd graph,
// and finds leaves that change before its backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpipe/runtime/recompute/buffers.h"

namespace gpipe::internal {

// The backward of a computation that autograd has not recorded. Returns one
// gradient per input edge, undefined if there is none or if it is not `wanted`.
// Called on the thread that called backward; may block. `grads`: one per
// output, undefined for outputs without a gradient. `keep_graph`: whether
// backward may be called again; if not, the function is destroyed.
// Threads: several at a time, if several threads call backward. What the
// function owns lives until the last of these calls has ended.
using OpaqueBackward = std::function<std::vector<at::Tensor>(
    std::vector<at::Tensor> grads, const std::vector<bool>& wanted,
    bool keep_graph)>;

// Attaches a graph to `outputs`: one operation, from `inputs` to `outputs`,
// whose backward is `backward`. `outputs` must have no graph and must be of a
// floating or complex type. `inputs`: see torch::autograd::impl::gradient_edge.
//
// Note [Gateway]
// The function makes two nodes. The first, the gateway, belongs to the outputs.
// It stores their gradients and passes on an empty CPU tensor. The second node
// calls `backward` and receives only this empty tensor. The engine runs a node
// on the thread of the device of its input. So the second node runs on the
// thread that called backward, and the engine thread of an accelerator stays
// free for the graphs that `backward` runs on other threads. If the engine
// thread were blocked in `backward`, these graphs would wait for it and it
// would wait for them: a deadlock.
//
// Errors at backward: whatever `backward` throws; c10::Error for a second
// backward without retain_graph, and for create_graph.
void attach_graph(std::vector<at::Tensor>& outputs,
                  std::vector<torch::autograd::Edge> inputs,
                  OpaqueBackward backward);

// Gives `tensor`, which a computation that autograd has not recorded has
// changed in place, a graph of which each backward throws c10::Error with the
// text `what`. If the tensor is a view, the tensor that it is a view of gets
// such a graph, too.
void refuse_backward(const at::Tensor& tensor, const std::string& what);

// The versions, and a few values, of the leaves of a graph.
//
// An optimizer of LibTorch may write to a parameter without a new version
// (torch::optim::SGD writes to `data()`), which autograd does not notice. On
// the CPU such a change is found by the values of three elements. On an
// accelerator it is not found, because to read a value is to wait for the
// device.
//
// Threads: one.
class LeafChanges {
 public:
  // Adds a leaf as it is now. The leaf must outlive this object.
  void watch(const at::Tensor& leaf);

  // Returns the first leaf, in the order of watch(), whose values but not whose
  // version have changed since; null if there is none.
  const at::Tensor* without_version() const;

  // Returns the first leaf with another version than at watch(); null if there
  // is none.
  const at::Tensor* with_version() const;

 private:
  struct Watched {
    at::Tensor leaf;
    WatchedVersion version;
    uint64_t values;  // a checksum of some elements; 0 if none is read
  };
  std::vector<Watched> leaves_;
};

}  // namespace gpipe::internal
