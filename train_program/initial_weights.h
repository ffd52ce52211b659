// The weights that a model starts with.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>

#include "train_program/model_source.h"
#include "weights/state_dict.h"

namespace gpipe::train_program {

// A summary of the weights that were loaded.
struct InitialWeights {
  std::string line;       // a line to print
  uint32_t checksum = 0;  // over the loaded tensors and their names
};

// Returns the checksum of the tensors of `dict` and of their names, in order.
uint32_t checksum_of(const StateDict& dict);

// Copies the tensors of a .pt, .pth or .safetensors file into `model`, which
// `source` made. For resnet50 and resnet101 the file may use torchvision's
// names. For an exported program the file uses Python's names, or those of the
// model's own state_dict(), which run checkpoints have.
//
// `skip`: a comma-separated list of prefixes. Tensors of the model whose names
// begin with one of them stay unchanged, for example "fc." if the number of
// classes differs.
//
// Throws c10::ValueError if the file cannot be read or a tensor does not fit.
InitialWeights load_initial_weights(torch::nn::Sequential& model,
                                    ModelSource& source,
                                    const std::string& path,
                                    const std::string& skip);

}  // namespace gpipe::train_program
