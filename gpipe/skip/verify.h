// Checks that the stashes and pops of a model match.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <vector>

#include "gpipe/skip/layout.h"

namespace gpipe {

namespace internal {
// Returns the skip tensors that the layers of `module` declare, one entry per
// layer, in order. Modules inside a layer count as part of the layer. Modules
// inside a nested pipeline (see KeepsDevices) are left out.
std::vector<internal::LayerSkips> declared_skips(
    const torch::nn::Sequential& module);
}  // namespace internal

// Throws c10::TypeError if stashes and pops of `module` do not match. The text
// has one line per mismatch: a name that is stashed or popped twice in a
// namespace, popped before it is stashed, never popped, or stashed and popped
// by the same layer.
void verify_skippables(torch::nn::Sequential module);

namespace internal {
// Does the same for `layers` whose skip tensors are known, in model order.
void verify_skips(const std::vector<internal::LayerSkips>& layers);
}  // namespace internal

}  // namespace gpipe
