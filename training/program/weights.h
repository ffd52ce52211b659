// The weights of a run: those that it begins with, its adapters, and those
// that it writes at its end.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <string>

#include "gpipe/distributed/pipeline.h"
#include "models/exported/exported.h"
#include "models/weights/state_dict.h"
#include "training/program/engine.h"
#include "training/program/model_source.h"
#include "training/program/options.h"
#include "training/program/saved_run.h"

namespace gpipe::train_program {

// ---- Initial weights

// The weights that were loaded.
struct InitialWeights {
  std::string line;       // a summary to print
  uint32_t checksum = 0;  // of the file or folder: hugging_face_checksum()
  // Loads the weights into some layers of the exported program that the model
  // is. Of a folder or a .pt file, and of a .safetensors file if the model is
  // on the meta device, reads those of these layers only.
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

// ---- Adapters

// Returns `options` with rank, targets, alpha and dropout of the folder
// Options::adapter, unless Options::lora_rank is set. Throws c10::ValueError,
// which names the flag, if the options of adapters do not fit together or the
// folder cannot be read.
Options with_adapter_options(Options options);

// Returns whether adapters are trained instead of weights. `options`: from
// with_adapter_options().
inline bool trains_adapters(const Options& options) {
  return options.lora_rank > 0;
}

// Adds adapters to a model, or to some layers of a .pt2 file. Initial values
// depend on the seed, not on the cut. Does nothing unless adapters are trained.
// Throws what add_lora() throws.
void add_adapters(torch::nn::Sequential layers, const Options& options);

// Writes the adapters of all processes in PEFT's format to RUN_DIR/adapter.
// All processes call this.
void save_adapter(Engine& engine, const Options& options);

// ---- The model of a run

struct LoadedModel {
  torch::nn::Sequential layers;
  // Makes some layers, if each process makes its own ones only. Then `layers`
  // is on the meta device. Not set if the values are in `layers`.
  LayerBuilder make;
  // The weights beside which adapters are trained, with their checksums. ""
  // unless adapters are trained.
  std::string base;
};

// Calls `make` for the model of `source`, loads Options::weights, converts the
// model to Options::precision, and adds and loads adapters. A run that resumes
// (`resumes`) has its weights in a run checkpoint. `say`: prints a line.
//
// `check_same`: compares checksums of files between processes, see
// check_same_in_all(). All processes call this. `source` must outlive the
// result. Throws what load_initial_weights(), add_lora() and load_lora() throw.
LoadedModel load_model(const Options& options, ModelSource& source,
                       const std::function<torch::nn::Sequential()>& make,
                       bool resumes,
                       const std::function<void(const FlagValues&)>& check_same,
                       const Print& say);

// ---- Final weights

// Throws what save_weights() would throw for a tensor of this model, such as
// one whose dtype the files lack. Writes nothing. All processes call it.
void check_save_weights(const Options& options, Engine& engine,
                        ModelSource& source);

// Writes the weights into the folder Options::save_weights, see
// save_hugging_face() in models/weights/hugging_face.h. All processes call it
// at the same point, and each writes the files of its own layers. An exported
// program has Python's names, which begin after Options::lora_wrapper, or those
// of Options::weights if that is a folder.
// With Options::merge_lora, first adds the adapters to the weights, and removes
// them. Returns a line to print.
//
// Throws c10::Error on all processes if one of them cannot merge or write.
std::string save_weights(const Options& options, Engine& engine,
                         ModelSource& source);

}  // namespace gpipe::train_program
