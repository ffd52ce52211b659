// The modules in a Sequential, which can be wrapped, as typed members cannot.
#pragma once

#include <c10/util/FunctionRef.h>
#include <torch/nn/module.h>

#include "gpipe/placement/place.h"

namespace gpipe::placement {

// In all Sequentials of the tree: a module for whose place the operators that
// use parameters do not see to (because it has none, or its output is not that
// of such an operator) is called through a wrapper that moves what goes in or
// comes out. Wrappers of an earlier call are taken away. Only how
// Sequential::forward() calls a module changes: children, names and what is
// printed do not. While a module is wrapped, Sequential::at<T>() refuses it.
void wrap_slots(torch::nn::Module& root,
                c10::function_ref<PlacePtr(const torch::nn::Module&)> place_of);

}  // namespace gpipe::placement
