// The weights that a model starts with.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <string>

#include "models/weights/state_dict.h"
#include "training/program/model_source.h"

namespace gpipe::train_program {

// The weights that were loaded.
struct InitialWeights {
  std::string line;       // a summary to print
  uint32_t checksum = 0;  // over the loaded tensors and their names
  // Loads the weights into some layers of the exported program that the model
  // is. Of a folder, reads those of these layers only.
  std::function<void(ExportedModel&)> load_part;
  // Whether load_part() sets all weights, so that those of the program need not
  // be read.
  bool sets_all = false;
};

// Returns the tensors of a .pt, .pth or .safetensors file. `flag`: the flag
// that has the path, for errors. `entry`: the entry of a .pt or .pth file that
// has the tensors, see read_torch_file(). Throws c10::ValueError if the file
// has another ending, or cannot be read.
StateDict read_named_tensors(const std::string& flag, const std::string& path,
                             const std::string& entry = {});

// Loads the tensors of a .pt, .pth or .safetensors file, or of a folder of
// transformers (models/weights/hugging_face.h), into `model`, which `source`
// made. For resnet50 and resnet101 the file may use torchvision's
// names. For an exported program the file uses Python's names, or those of the
// model's own state_dict(), which run checkpoints have.
//
// `skip`: a comma-separated list of prefixes. Tensors of the model whose names
// begin with one of them stay unchanged, for example "fc." if the number of
// classes differs. `entry`: see read_named_tensors().
//
// `dtype`: the dtype of the weights of a folder, such as "float32", if it is
// not the stored one. For exported programs only: a model of models/ keeps its
// dtypes.
//
// If `model` is on the meta device, only names, shapes and dtypes are compared.
//
// Throws c10::ValueError if the file cannot be read, a tensor does not fit,
// all tensors are skipped, or the weights of a folder would change the dtype of
// an exported program, so that a resumed run would have another one.
InitialWeights load_initial_weights(torch::nn::Sequential& model,
                                    ModelSource& source,
                                    const std::string& path,
                                    const std::string& skip,
                                    const std::string& entry = {},
                                    const std::string& dtype = {});

}  // namespace gpipe::train_program
