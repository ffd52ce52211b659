// The task of a model from a file, with any inputs.
#pragma once

#include <memory>
#include <string>

#include "training/program/model_source.h"
#include "training/program/options.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// Returns whether the ending of a file says that it has named tensors:
// .safetensors, .pt or .pth.
bool has_named_tensors(const std::string& path);

// Returns a task that trains an exported program on a file of named tensors:
// one for each input of the program, by its name, and "target". Row i of all of
// them belongs together. Options::held_out of the rows, drawn by the seed, are
// for testing. Depending on the target the loss is
// - the cross entropy, if it has whole numbers and one dimension fewer than the
//   output: the index into the last dimension of the output, or -100 for none;
// - the mean squared error, if it has floating-point numbers and as many
//   dimensions as the output.
//
// Throws c10::ValueError if the file cannot be read, if it lacks a tensor, if
// dtypes or sizes do not fit the program, or if the options do not fit.
std::unique_ptr<Task> tensor_rows(const Options& options,
                                  std::shared_ptr<ModelSource> source);

}  // namespace gpipe::train_program
