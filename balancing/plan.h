// Public: how to run a model as a pipeline: the cut, the number of
// micro-batches and the checkpoints that take the least time and fit.
#pragma once

#include <c10/core/Device.h>
#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "balancing/profile.h"
#include "gpipe/gpipe.h"
#include "gpipe/runtime/value.h"

namespace gpipe::balancing {

// One per partition.
struct PlanDevice {
  /* implicit */ PlanDevice(torch::Device device = torch::kCPU)
      : device_(device) {}
  TORCH_ARG(torch::Device, device);
  // Of the device that is profiled on: 2 is twice as fast. > 0.
  TORCH_ARG(double, speed) = 1;
  // That training may take; >= 0.
  TORCH_ARG(double, memory_bytes) = std::numeric_limits<double>::infinity();
};

// Of a step: forward() and backward, or train_step() by
// one_forward_one_backward(), which takes as long and holds less.
enum class PlanSchedule { kFillDrain, kOneForwardOneBackward };

// What plan() tries, and what it reckons with.
struct PlanOptions {
  TORCH_ARG(PlanSchedule, schedule) = PlanSchedule::kFillDrain;
  // What to try. No chunks: 1, 2, 4, ... up to 8 per partition and to the rows
  // of the mini-batch.
  TORCH_ARG(std::vector<int64_t>, chunks);
  TORCH_ARG(std::vector<Checkpoint>, checkpoints) = {
      Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways};
  // Bytes in all for each byte of trained parameters: see SizeOptions in
  // balancing/balancing.h.
  TORCH_ARG(double, param_scale) = 2.0;
  // Of a copy from device to device: seconds, and bytes per second.
  TORCH_ARG(double, latency) = 0;
  TORCH_ARG(double, bandwidth) = std::numeric_limits<double>::infinity();
  // How many partitions can work at the same time. 0: all on accelerators; on
  // CPUs as many as there are cores for the threads of each.
  TORCH_ARG(int64_t, workers) = 0;
  // Of each profile, for every number of micro-batches one.
  TORCH_ARG(TimeOptions, profile) = TimeOptions();
};

// What is predicted for a partition of the chosen cut.
struct PlannedPartition {
  torch::Device device = torch::kCPU;
  int64_t first_layer = 0, layers = 0;
  double forward = 0, backward = 0;  // seconds per micro-batch
  double memory_bytes = 0;           // at most, by LayerMemory and param_scale
  double memory_limit = 0;
  double idle = 0;  // part of the step, 0 to 1
  // Of the idle time of all partitions, 0 to 1; 0 if none is idle.
  double bubble_share = 0;
};

// One that was tried.
struct PlanCandidate {
  int64_t chunks = 1;
  Checkpoint checkpoint = Checkpoint::kExceptLast;
  double step_seconds = 0;  // infinite if it does not fit
  std::string remark;       // why not, if so
};

// What plan() has chosen, and why.
struct Plan {
  std::vector<int64_t> balance;
  int64_t chunks = 1;
  Checkpoint checkpoint = Checkpoint::kExceptLast;
  double step_seconds = 0;  // forward and backward of a mini-batch, predicted
  std::vector<PlannedPartition> partitions;
  std::vector<PlanCandidate> candidates;

  // For GPipe's constructor. Threads: several may call it at once.
  GPipeOptions options() const;
};

// A table of the partitions under a line with the choice, and one of all that
// was tried. Threads: any that may use the stream.
std::ostream& operator<<(std::ostream& stream, const Plan& plan);

namespace detail {
Plan plan(const torch::nn::Sequential& model, const Value& input,
          const std::vector<PlanDevice>& devices, const PlanOptions& options);
}  // namespace detail

// Of all cuts, and of all chunks and checkpoint modes in `options`, the one
// with the least predicted time of a step that respects the devices' memory:
//
//   auto plan = gpipe::balancing::plan(model, input, {torch::kCPU,
//   torch::kCPU}); std::cout << plan; gpipe::GPipe pipeline(model,
//   plan.options());
//
// For each number of micro-batches the layers are profiled with one of them
// (see balancing/profile.h), on CPUs with the threads that a partition will
// have and with copies of the model at work beside it (TimeOptions::company),
// as many as partitions can work at a time. The cut is exact for GPipe's
// schedule with copies beside the computing (balancing/chain.h), where a
// recompute counts as a part of its backward; then the schedule with its
// recomputes is simulated on the cores that there are (gpipe/simulation.h).
// What is not in a prediction: the optimizer, the loss, memory that operators
// take for themselves.
//
// `input`: a whole mini-batch; see profile_times for types and what is left
// unchanged.
//
// Errors: InfeasibleError (balancing/infeasible.h) if nothing fits, with what
// the best of all modes would need; c10::ValueError for a model that is null,
// without rows, devices or layers for each, for chunks, workers or numbers that
// cannot be; those of profiling.
// Complexity: a profile for each number of micro-batches, and for each of them
// and each mode a balance_chain and a simulate in O(chunks * devices).
// Threads: as for profile_times. Profiling on CPUs sets the calling thread's
// at::set_num_threads() meanwhile, and puts it back.
template <typename Input>
Plan plan(torch::nn::Sequential model, Input input,
          const std::vector<PlanDevice>& devices,
          const PlanOptions& options = {}) {
  return detail::plan(model, Value::wrap(std::move(input)), devices, options);
}

// The same from a profile of `profile.rows` rows for a mini-batch of `rows`:
// times and memory of a micro-batch are taken to be proportional to its rows.
// `options.profile` is not used.
//
// Errors: as above, but for those of profiling; c10::ValueError for a profile
// without rows; std::invalid_argument for times or bytes that cannot be.
// Threads: any; but for workers = 0 on CPUs, where the calling thread's
// at::get_num_threads() and the cores count, a function of its arguments.
Plan plan(const Profile& profile, int64_t rows,
          const std::vector<PlanDevice>& devices,
          const PlanOptions& options = {});

}  // namespace gpipe::balancing
