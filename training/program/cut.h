// The partitioning of a model into stages, with the schedule that runs them.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "balancing/balancing.h"
#include "gpipe/schedule.h"
#include "training/program/offload_option.h"
#include "training/program/options.h"
#include "training/program/precision.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// A schedule, with the stages that it runs.
struct Cut {
  Schedule schedule;
  std::vector<int64_t> balance;  // layers per stage
  int64_t stages_per_rank = 1;
  Placement placement = Placement::kLoop;
  int64_t chunks = 1;
  Checkpoint checkpoint = Checkpoint::kExceptLast;

  // With --plan only:
  std::string plan;                     // its text, on the first process
  double predicted_seconds = 0;         // forward and backward of a step
  std::vector<double> predicted_bytes;  // peak of each rank
};

// The inputs of make_cut() beside the options.
struct CutSources {
  const torch::nn::Sequential& model;  // on the meta device if `make` is set
  int64_t ranks;
  int64_t rows;  // of this replica's part of a mini-batch
  // Returns input with this number of rows, on the device used for profiling.
  std::function<Sample(int64_t rows)> input;
  // The layers per stage of the run that resumes; empty in a new run. Used
  // unless --balance is a list or the number of stages has changed.
  std::vector<int64_t> before;
  const Precision& precision;
  // The devices of the ranks, the smallest ones of all replicas. Used if
  // --offload is auto; the same on all processes.
  std::vector<RankDevice> devices;
  // Makes single layers with values, to time them; see EngineParts::make.
  balancing::MakeLayers make;
  // Calls its argument on the first process and returns the result on all
  // processes. Otherwise each process could measure different times.
  std::function<std::string(const std::function<std::string()>&)> of_first;
};

// Returns the layers per part if Options::balance is a list, nullopt if it is
// "time" or "size". `kind`: the word for the parts, for errors: "stages".
// Throws c10::ValueError if the list does not have `parts` entries, or `layers`
// layers.
std::optional<std::vector<int64_t>> listed_balance(const Options& options,
                                                   int64_t parts,
                                                   int64_t layers,
                                                   const std::string& kind);

// Returns the schedule and the balance for `options`. Options::balance is
// "time" (layers are timed), "size" (their memory is counted) or a list of
// layers per stage.
//
// Throws c10::ValueError or std::invalid_argument if the options do not fit.
Cut make_cut(const Options& options, const CutSources& sources);

}  // namespace gpipe::train_program
