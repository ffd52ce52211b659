// Weights that a model begins with.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <string>

namespace gpipe::trainer {

// Copies the tensors of a .pt, .pth or .safetensors file into `model`. Those of
// torchvision's resnet50 and resnet101 may have torchvision's names. `skip`: of
// tensors that are left as they are, the beginnings of their names in the
// model, with commas ("fc." for another number of classes). Returns a line that
// says what was loaded.
//
// c10::ValueError for a file that cannot be read, or tensors that do not fit.
std::string load_initial_weights(torch::nn::Sequential& model,
                                 const std::string& model_name,
                                 const std::string& path,
                                 const std::string& skip);

}  // namespace gpipe::trainer
