// The weights that a model starts with.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>

#include "models/weights/state_dict.h"
#include "training/program/model_source.h"

namespace gpipe::train_program {

// The weights that were loaded.
struct InitialWeights {
  std::string line;       // a summary to print
  uint32_t checksum = 0;  // over the loaded tensors and their names
  StateDict tensors;      // the loaded ones, under the names of the file
};

// Returns the tensors of a .pt, .pth or .safetensors file. `flag`: the flag
// that has the path, for errors. `entry`: the entry of a .pt or .pth file that
// has the tensors, see read_torch_file(). Throws c10::ValueError if the file
// has another ending, or cannot be read.
StateDict read_named_tensors(const std::string& flag, const std::string& path,
                             const std::string& entry = {});

// Copies the tensors of a .pt, .pth or .safetensors file into `model`, which
// `source` made. For resnet50 and resnet101 the file may use torchvision's
// names. For an exported program the file uses Python's names, or those of the
// model's own state_dict(), which run checkpoints have.
//
// `skip`: a comma-separated list of prefixes. Tensors of the model whose names
// begin with one of them stay unchanged, for example "fc." if the number of
// classes differs. `entry`: see read_named_tensors().
//
// If `model` is on the meta device, only names, shapes and dtypes are compared.
//
// Throws c10::ValueError if the file cannot be read, a tensor does not fit, or
// all tensors are skipped.
InitialWeights load_initial_weights(torch::nn::Sequential& model,
                                    ModelSource& source,
                                    const std::string& path,
                                    const std::string& skip,
                                    const std::string& entry = {});

// Copies those of `tensors`, InitialWeights::tensors of the whole model, that
// `part` has into it.
void load_part(ExportedModel& part, const StateDict& tensors);

}  // namespace gpipe::train_program
