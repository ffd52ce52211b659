// Makes a whole computation one node of the caller's autograd graph.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <memory>
#include <vector>

namespace gpipe {

// The backward of a computation that autograd has not seen.
class OpaqueBackward {
 public:
  virtual ~OpaqueBackward() = default;

  // `grads`: one per output, undefined where none has arrived. Returns one per
  // input edge, undefined where there is none or it is not `wanted`. Called
  // on the thread that called backward; may block. `keep_graph`: the caller
  // may come again.
  virtual std::vector<at::Tensor> backward(std::vector<at::Tensor> grads,
                                           const std::vector<bool>& wanted,
                                           bool keep_graph) = 0;

  // The caller will not come again.
  virtual void release() = 0;
};

// Gives `outputs`, which must have no graph and be of a floating or complex
// type, a graph that is `backward` between them and `inputs` (see
// torch::autograd::impl::gradient_edge).
//
// Note [Gateway]
// Two nodes are made. The gateway belongs to the outputs: it sets their
// gradients aside and passes on an empty CPU tensor. The second node, which
// calls `backward`, receives only that. The engine runs a node on the thread
// of the device of what it receives, so the second one runs on the thread that
// called backward, and the engine's thread of an accelerator is free for the
// graphs that `backward` runs on other threads. Were it blocked, those would
// wait for it, and it for them, for ever.
//
// Errors at backward: what `backward` throws; c10::Error for a second
// backward without retain_graph, and for create_graph.
void attach_graph(std::vector<at::Tensor>& outputs,
                  std::vector<torch::autograd::Edge> inputs,
                  std::shared_ptr<OpaqueBackward> backward);

}  // namespace gpipe
