// Releases the autograd graph of a layer node by node, to see what each
// operator keeps.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <string>
#include <vector>

namespace gpipe::balancing {

// Releases the graph whose outputs are `outputs`, an operator before those
// whose results it takes. Calls `released` after each node, with the operator's
// name: that of its autograd node ("AddmmBackward0"), or the type of a
// torch::autograd::Function.
//
// A tensor that several nodes keep is so freed by the first operator that kept
// it in the forward. `outputs` must be the only owners of the graph.
//
// Complexity: O(n log n) for n nodes. Threads: any thread, while no other
// thread uses the graph.
void release_graph(std::vector<torch::autograd::Edge> outputs,
                   const std::function<void(const std::string&)>& released);

}  // namespace gpipe::balancing
