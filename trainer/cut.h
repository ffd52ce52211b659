// How a model is cut, and who does what when.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpipe/schedule.h"
#include "trainer/options.h"
#include "trainer/precision.h"

namespace gpipe::trainer {

struct Cut {
  Schedule schedule;
  std::vector<int64_t> balance;  // layers per stage
  int64_t stages_per_rank = 1;
  Placement placement = Placement::kLoop;
};

struct CutSources {
  const torch::nn::Sequential& model;
  int64_t ranks;
  int64_t rows;  // of a mini-batch, of this replica
  // So many rows of input, on the device to measure on.
  std::function<at::Tensor(int64_t rows)> input;
  // If there is one: of a run that goes on. Taken unless the flag lists numbers
  // or there are other stages now.
  std::vector<int64_t> before;
  const Precision& precision;
  // What the first process finds, for all of them: two would measure two
  // things.
  std::function<std::string(const std::function<std::string()>&)> of_first;
};

// EngineOptions::balance is "time" (measured), "size" (counted) or a list.
//
// c10::ValueError and std::invalid_argument for options that do not fit.
Cut make_cut(const EngineOptions& options, const CutSources& sources);

}  // namespace gpipe::trainer
