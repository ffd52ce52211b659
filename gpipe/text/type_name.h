// Types of modules as their users call them. No LibTorch.
#pragma once

#include <string>

namespace gpipe {

// "torch::nn::Conv2dImpl" is Conv2d to its users, and "ns::CellImpl<T>" Cell.
// Threads: pure function.
std::string module_type_name(std::string type);

}  // namespace gpipe
