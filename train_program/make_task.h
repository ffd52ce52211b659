// The choice of the task by model and data.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train_program/options.h"
#include "train_program/task.h"

namespace gpipe::trainer {

// The kinds of data: labelled images, images with masks, or a text.
enum class DataKind { kImages, kMasks, kText };

// Returns the names of all models: resnet50, resnet101, amoebanetd, unet,
// transformer.
std::vector<std::string> model_names();

// Returns the kind of data that a model needs. Throws c10::ValueError, which
// lists all models, if there is no such model.
DataKind data_kind_of_model(const std::string& model);

// Returns the kind of data at a path. A file is a text. A folder that contains
// images/ and masks/ holds images with masks. Any other folder holds labelled
// images. Throws c10::ValueError if the path does not exist.
DataKind data_kind_at(const std::string& path);

// Returns the task for a model and its data. Throws c10::ValueError if there is
// no such model, if it cannot be trained on this data (the text says which
// models can), or if the options do not fit.
std::unique_ptr<Task> make_task(const TaskOptions& options);

}  // namespace gpipe::trainer
