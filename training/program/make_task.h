// The choice of the task by model and data.
#pragma once

#include <memory>
#include <string>

#include "models/named.h"
#include "training/program/options.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// Returns the kind of data at a path. A file is a text, unless it ends in
// .safetensors, .pt or .pth: these have named tensors. A folder that contains
// images/ and masks/ holds images with masks. Any other folder holds labelled
// images. Throws c10::ValueError if the path does not exist.
models::DataKind data_kind_at(const std::string& path);

// Loads the libraries of Options::operators, and returns the task for a model
// and its data. Throws c10::ValueError if there is no such model, if it cannot
// be trained on this data (the text says which models can), or if the options
// do not fit, and std::invalid_argument if a library cannot be loaded.
std::unique_ptr<Task> make_task(const Options& options);

}  // namespace gpipe::train_program
