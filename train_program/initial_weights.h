// The weights that a model starts with.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>

namespace gpipe::train_program {

// A summary of the weights that were loaded.
struct InitialWeights {
  std::string line;       // a line to print
  uint32_t checksum = 0;  // over the loaded tensors and their names
};

// Copies the tensors of a .pt, .pth or .safetensors file into `model`. For
// resnet50 and resnet101 the file may use torchvision's names.
//
// `skip`: a comma-separated list of prefixes. Tensors of the model whose names
// begin with one of them stay unchanged, for example "fc." if the number of
// classes differs.
//
// Throws c10::ValueError if the file cannot be read or a tensor does not fit.
InitialWeights load_initial_weights(torch::nn::Sequential& model,
                                    const std::string& model_name,
                                    const std::string& path,
                                    const std::string& skip);

}  // namespace gpipe::train_program
