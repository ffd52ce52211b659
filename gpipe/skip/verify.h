// Checks that the stashes and pops of a model match.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <vector>

#include "gpipe/skip/layout.h"

namespace gpipe {

// What the layers of `module` declare, one entry per layer, in order. Modules
// inside of a layer count as the layer's own, but those of a pipeline in it.
std::vector<LayerSkips> declared_skips(const torch::nn::Sequential& module);

// c10::TypeError listing every mismatch of `module`'s stashes and pops, one
// per line: a name stashed or popped twice in a namespace, popped before it
// is stashed, never popped, or stashed and popped by the same layer.
void verify_skippables(torch::nn::Sequential module);

// The same of layers whose skips are known, in their order.
void verify_skips(const std::vector<LayerSkips>& layers);

}  // namespace gpipe
