// The task that a model and a path make.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/options.h"
#include "trainer/task.h"

namespace gpipe::trainer {

enum class DataKind { kImages, kMasks, kText };

// resnet50, resnet101, amoebanetd, unet, transformer.
std::vector<std::string> model_names();

// c10::ValueError, with all names, for another one.
DataKind data_kind_of_model(const std::string& model);

// What is at a path: a file is a text, a folder with images/ and masks/ has
// masks, any other folder is one of images. c10::ValueError if nothing is.
DataKind data_kind_at(const std::string& path);

// c10::ValueError for a model that there is not, data that the model cannot be
// trained on (it says which models can), and options that do not fit.
std::unique_ptr<Task> make_task(const TaskOptions& options);

}  // namespace gpipe::trainer
