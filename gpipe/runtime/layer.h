// Calls one layer on a Value: the only place that knows AnyModule's types.
#pragma once

#include <torch/nn/modules/container/any.h>

#include "gpipe/runtime/value.h"

namespace gpipe {

// layer.forward(input), with `input` passed as the type that it holds.
// c10::TypeError if the layer returns something else than tensors;
// c10::Error, as from torch::nn::Sequential, if it takes another type; and
// whatever the layer throws.
Value call_layer(torch::nn::AnyModule& layer, Value input);

}  // namespace gpipe
