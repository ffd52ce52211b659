// A function that is called again in backward, instead of keeping what it
// saved for its backward.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <vector>

#include "gpipe/runtime/cell/value.h"

namespace gpipe::internal {

using CheckpointedFunction = std::function<Value(std::vector<Value> inputs)>;

// Implements gpipe::checkpoint(); see gpipe/checkpoint.h. `module`: the module
// whose forward `function` calls, or null. If it is given, its parameters, its
// training mode and its buffers are watched, too: a second call sees the buffer
// values of the first one, and leaves the buffers as they are.
//
// The outputs have the graph of the call, so that leaves, edges, hooks and the
// parts of a split backward are those of the plain model. Only the tensors that
// the graph's nodes have saved are missing. The first node that needs one calls
// the function again, under hooks that catch what it saves, in the same order.
// The idea is that of PyTorch's checkpoint(use_reentrant=False), by
// saved-tensor hooks.
Value call_checkpointed(CheckpointedFunction function,
                        std::vector<Value> inputs,
                        std::shared_ptr<torch::nn::Module> module = nullptr);

}  // namespace gpipe::internal
