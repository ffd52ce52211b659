// Weights that a model begins with.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>

namespace gpipe::trainer {

struct InitialWeights {
  std::string line;       // what was loaded, for people
  uint32_t checksum = 0;  // of that
};

// Copies the tensors of a .pt, .pth or .safetensors file into `model`. Those of
// torchvision's resnet50 and resnet101 may have torchvision's names. `skip`: of
// tensors that are left as they are, the beginnings of their names in the
// model, with commas ("fc." for another number of classes).
//
// c10::ValueError for a file that cannot be read, or tensors that do not fit.
InitialWeights load_initial_weights(torch::nn::Sequential& model,
                                    const std::string& model_name,
                                    const std::string& path,
                                    const std::string& skip);

}  // namespace gpipe::trainer
