// Calls one layer on a Value. No other code converts to the types of AnyModule.
#pragma once

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/any_value.h>

#include <cstddef>
#include <string>

#include "gpipe/runtime/cell/value.h"

namespace gpipe::internal {

// Returns the content of `value` as the type that it holds (tensor, vector or
// tuple).
torch::nn::AnyValue to_any_value(Value value);

// Returns layer.forward(input); `input` is passed as the type that it holds
// (tensor, vector or tuple). Throws c10::TypeError if the layer returns
// anything but tensors, c10::Error (as torch::nn::Sequential does) if the layer
// takes another type, and whatever the layer throws.
Value call_layer(torch::nn::AnyModule& layer, Value input);

// Does the same for a layer that runs on meta tensors. Adds to the text of a
// c10::Error which layer it was and what to do if the layer needs values.
// `index`, `name`: of the layer in its Sequential.
Value call_layer_on_meta(torch::nn::AnyModule& layer, Value input,
                         std::size_t index, const std::string& name);

}  // namespace gpipe::internal
