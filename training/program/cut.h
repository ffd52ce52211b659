// The partitioning of a model into stages, with the schedule that runs them.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "balancing/balancing.h"
#include "gpipe/schedule.h"
#include "training/program/options.h"
#include "training/program/step.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// ---- The option --offload

// What --offload=auto knows of the device of one rank.
struct RankDevice {
  bool is_accelerator = false;
  double memory_bytes = 0;  // 0: not known
};

// Returns what LibTorch says of `device`.
RankDevice rank_device(const c10::Device& device);

// Converts a device to text and back, to tell other processes. rank_device_of()
// throws c10::ValueError if `text` is not from to_text().
std::string to_text(const RankDevice& device);
RankDevice rank_device_of(const std::string& text);

// Returns the bytes that each rank of `schedule` holds at its peak: parameters,
// gradients, the optimizer's state, and what micro-batches keep for their
// backward. `balance`: the layers of each stage. `memory`: of one micro-batch.
// `param_scale`: see SizeOptions in balancing/balancing.h. Memory that
// operators need only while they run is not counted.
std::vector<double> predicted_bytes(const Schedule& schedule,
                                    Checkpoint checkpoint,
                                    const std::vector<int64_t>& balance,
                                    const balancing::MemoryProfile& memory,
                                    double param_scale);

// Returns the ranks that offload if --offload is auto: none if a rank has no
// accelerator; all if the memory of a device is not known; else those for which
// `predicted` is more than 4/5 of the memory of their device. The rest is for
// operators and the allocator.
std::vector<int64_t> ranks_to_offload(const std::vector<RankDevice>& devices,
                                      const std::vector<double>& predicted);

// Returns `schedule` with the copies that `offload` asks for: "none", the
// number of actions for distant_cells() (gpipe/schedule.h), or "auto". With
// auto the number is 2, so that the copies of a cell have at least one action
// to run beside, on the ranks that `automatic` returns, which is called only
// then.
//
// Throws c10::ValueError if `offload` is something else.
Schedule with_offload_option(
    Schedule schedule, const std::string& offload,
    const std::function<std::vector<int64_t>()>& automatic);

// ---- Cuts

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

// Returns the total bytes per byte of parameters for Options::optimizer: see
// SizeOptions in balancing/balancing.h. With Options::shard_optimizer, the
// optimizer's state is divided by Options::data_parallel.
double param_scale_of(const Options& options);

// Returns the schedule and the balance for `options`. Options::balance is
// "time" (layers are timed), "size" (their memory is counted) or a list of
// layers per stage.
//
// Throws c10::ValueError or std::invalid_argument if the options do not fit.
Cut make_cut(const Options& options, const CutSources& sources);

// ---- The cut that --plan asks for

// Returns the schedule and the balance of a plan (balancing/plan.h).
// Options::plan is "auto", which plans with the first mini-batch, or the path
// of a plan that //tools:plan has written as JSON. Of several processes, the
// first one plans or reads the file.
//
// Throws c10::ValueError or std::invalid_argument if the options or the file do
// not fit, and balancing::InfeasibleError if nothing fits the memory.
Cut make_planned_cut(const Options& options, const CutSources& sources);

}  // namespace gpipe::train_program
