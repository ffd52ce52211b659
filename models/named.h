// Models by name, for programs whose users choose one with --model.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/weights/names.h"

namespace gpipe::models {

// The data that a model is trained on. The input has the shape [batch, 3,
// height, width] for kImages (labelled images) and kMasks (images with masks),
// and [batch, tokens] for kText. kTensors is a file with a tensor for each
// input; only models from files take it.
enum class DataKind { kImages, kMasks, kText, kTensors };

// The options of all named models. A model ignores those that it does not have.
struct ModelOptions {
  int64_t classes = 1000;        // resnet50, resnet101, amoebanetd
  int64_t depth = 5;             // levels of unet
  int64_t convolutions = 2;      // per level of unet
  int64_t layers = 6;            // cells of amoebanetd, blocks of transformer
  int64_t width = 64;            // filters, channels of the first level, width
  int64_t heads = 8;             // transformer
  int64_t vocabulary = 1000;     // transformer: different tokens
  int64_t sequence = 1024;       // transformer: largest number of tokens
  double dropout = 0.1;          // transformer
  bool tied_embeddings = false;  // transformer
};

// A size of a model that the flags of a program set.
struct ModelSize {
  std::string flag;  // in a program that has flags for each model: "unet_depth"
  int64_t ModelOptions::*option;
  int64_t usual;  // the value in default_options()
  int64_t small;  // a value for training in minutes on a CPU
  std::string help;
};

// Return the names of all models, or of those that are trained on `kind`, in
// the order of the list in named.cc.
std::vector<std::string> model_names();
std::vector<std::string> model_names(DataKind kind);

// Return the kind of data of a model, and its sizes, which are none if they are
// fixed. Throw c10::ValueError, with all names, if there is no such model.
DataKind data_kind_of(const std::string& name);
std::vector<ModelSize> model_sizes(const std::string& name);
// Returns whether one of the model's sizes is `option`. Throws like
// data_kind_of().
bool has_size(const std::string& name, int64_t ModelOptions::*option);

// Returns the table from the names of a model's tensors to those in
// torchvision's model of the same name, or an empty table if torchvision does
// not have the model (resnet_names.h).
NameTable torchvision_names(const std::string& name);

// Returns options with the usual sizes of a model. Throws like data_kind_of().
ModelOptions default_options(const std::string& name);

// Returns the model that the function of this name makes. The feed-forward
// layers of transformer have four times its width.
//
// Throws c10::ValueError, with all names, if there is no such model, or if an
// option is not allowed.
torch::nn::Sequential named_model(const std::string& name,
                                  const ModelOptions& options);

}  // namespace gpipe::models
