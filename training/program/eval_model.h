// The model of --eval_model: that of --model, exported in eval mode.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

#include "models/exported/exported.h"
#include "training/program/model_source.h"
#include "training/program/options.h"

namespace gpipe::train_program {

// Throws c10::ValueError if the run evaluates, and eval() of the model would
// throw: with the nodes that are in the way, and with the flags that help.
void check_evaluation(const Options& options, const ModelSource& source);

// Returns the file of Options::eval_model, which replaces the model of `source`
// in evaluations, cut into layers as small as possible.
//
// Throws c10::ValueError if `source` is no file, if the file cannot be read or
// cannot run in eval mode, and if its inputs or outputs are not those of
// `source`.
ExportedFile eval_file(const Options& options, const ModelSource& source);

// Returns the layers per stage of `evaluated`, so that each stage has the
// parameters and buffers that it has in `trained`, which is cut by `balance`.
// Both are Sequentials of exported programs, and may be on the meta device.
//
// Throws c10::ValueError if a parameter is not in `trained`, if a tensor has
// another shape or dtype there, and if there is no such balance: the text has
// the layer and the tensors.
std::vector<int64_t> eval_balance(const torch::nn::Sequential& trained,
                                  const std::vector<int64_t>& balance,
                                  const torch::nn::Sequential& evaluated);

// Lets the tensors of `evaluated` be those of `trained` with the same Python
// names, without copies. Both are pipelines on the same devices. A buffer that
// `trained` does not have keeps its value. Not thread-safe.
void share_tensors(const torch::nn::Module& trained,
                   torch::nn::Module& evaluated);

}  // namespace gpipe::train_program
