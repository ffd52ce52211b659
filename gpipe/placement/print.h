// Prints modules with their devices.
#pragma once

#include <torch/nn/module.h>

#include <iosfwd>

namespace gpipe::placement {

// Prints what LibTorch prints for the module. Appends "
// [processing_device=cuda:0, output_device=cuda:1]" to each parallelized module
// of the tree.
std::ostream& print_module(std::ostream& stream,
                           const torch::nn::Module& module);

}  // namespace gpipe::placement
