// Shortens names of module types. No LibTorch.
#pragma once

#include <string>

namespace gpipe {

// Returns the name that users know: "Conv2d" for "torch::nn::Conv2dImpl", and
// "Cell" for "ns::CellImpl<T>". Thread-safe.
std::string module_type_name(std::string type);

}  // namespace gpipe
