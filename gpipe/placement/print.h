// Modules with their devices, as text.
#pragma once

#include <torch/nn/module.h>

#include <iosfwd>

namespace gpipe::placement {

// What LibTorch prints for the module, with " [processing_device=cuda:0,
// output_device=cuda:1]" behind each one in the tree that is parallelized.
std::ostream& print_module(std::ostream& stream,
                           const torch::nn::Module& module);

}  // namespace gpipe::placement
