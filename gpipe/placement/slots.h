// Wraps the modules in a Sequential. Typed members cannot be wrapped.
#pragma once

#include <c10/util/FunctionRef.h>
#include <torch/nn/module.h>

#include "gpipe/placement/place.h"

namespace gpipe::placement {

// Wraps modules in all Sequentials of the tree whose tensors are not moved by
// operators that use parameters:
// - If a module has no parameters or buffers, its wrapper moves the inputs.
// - If it has none, or has children, its wrapper moves the output.
// - The wrapper of the last module also moves the output of the Sequential.
// Wrappers of an earlier call are removed.
//
// Only the way in which Sequential::forward() calls a module changes: children,
// names and printed text do not. While a module is wrapped, Sequential::at<T>()
// throws for it.
// `place_of`: returns the place of a module, or null.
void wrap_slots(torch::nn::Module& root,
                c10::function_ref<PlacePtr(const torch::nn::Module&)> place_of);

}  // namespace gpipe::placement
