// Public: plan() chooses the cut, the number of micro-batches and the
// checkpoint mode with the smallest predicted step time that fits the memory.
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
#include "gpipe/runtime/cell/value.h"

namespace gpipe::balancing {

// The device of one partition.
struct PlanDevice {
  /* implicit */ PlanDevice(torch::Device device = torch::kCPU)
      : device_(device) {}
  // So that a list of devices may be {torch::kCPU, torch::kCPU}.
  /* implicit */ PlanDevice(torch::DeviceType type) : device_(type) {}
  TORCH_ARG(torch::Device, device);
  // Speed relative to the device that is profiled on, > 0: 2 is twice as fast.
  TORCH_ARG(double, speed) = 1;
  // Bytes that training may use on the device, >= 0.
  TORCH_ARG(double, memory_bytes) = std::numeric_limits<double>::infinity();
};

// The schedule of a step. kFillDrain stands for forward() and backward().
// kOneForwardOneBackward stands for train_step() with
// one_forward_one_backward(), which takes as long and needs less memory.
enum class PlanSchedule { kFillDrain, kOneForwardOneBackward };

// The candidates that plan() tries, and the assumptions of its prediction.
struct PlanOptions {
  TORCH_ARG(PlanSchedule, schedule) = PlanSchedule::kFillDrain;
  // The numbers of micro-batches and the checkpoint modes to try. If `chunks`
  // is empty, plan() tries 1, 2, 4, ... up to 8 per partition and up to the
  // rows of the mini-batch.
  TORCH_ARG(std::vector<int64_t>, chunks);
  TORCH_ARG(std::vector<Checkpoint>, checkpoints) = {
      Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways};
  // Total bytes per byte of trained parameters: see SizeOptions in
  // balancing/balancing.h.
  TORCH_ARG(double, param_scale) = 2.0;
  // A copy from device to device takes `latency` seconds plus its bytes divided
  // by `bandwidth` (bytes per second).
  TORCH_ARG(double, latency) = 0;
  TORCH_ARG(double, bandwidth) = std::numeric_limits<double>::infinity();
  // How many partitions can compute at the same time. 0: all on accelerators;
  // on CPUs, as many as the cores allow if each partition uses its share of
  // threads.
  TORCH_ARG(int64_t, workers) = 0;
  // Options of each profile. plan() makes one profile per number of
  // micro-batches.
  TORCH_ARG(TimeOptions, profile) = TimeOptions();
};

// The prediction for one partition of the chosen cut.
struct PlannedPartition {
  torch::Device device = torch::kCPU;
  int64_t first_layer = 0, layers = 0;
  double forward = 0, backward = 0;  // seconds per micro-batch
  double memory_bytes = 0;           // peak, from LayerMemory and param_scale
  double memory_limit = 0;
  double idle = 0;  // fraction of the step, 0 to 1
  // Fraction of the idle time of all partitions, 0 to 1; 0 if no partition is
  // idle.
  double bubble_share = 0;
};

// A number of micro-batches and a checkpoint mode that plan() tried.
struct PlanCandidate {
  int64_t chunks = 1;
  Checkpoint checkpoint = Checkpoint::kExceptLast;
  double step_seconds = 0;  // infinity if it does not fit
  std::string remark;       // why it does not fit, or empty
};

// The choice of plan(), with the predictions behind it.
struct Plan {
  std::vector<int64_t> balance;
  int64_t chunks = 1;
  Checkpoint checkpoint = Checkpoint::kExceptLast;
  double step_seconds = 0;  // predicted: forward and backward of a mini-batch
  std::vector<PlannedPartition> partitions;
  std::vector<PlanCandidate> candidates;

  // Returns the options for GPipe's constructor.
  //
  // Threads: several threads may call this at once.
  GPipeOptions options() const;
};

// Prints a line with the choice, a table of the partitions, and a table of all
// candidates.
//
// Threads: as for the stream.
std::ostream& operator<<(std::ostream& stream, const Plan& plan);

namespace detail {
Plan plan(const torch::nn::Sequential& model, const internal::Value& input,
          const std::vector<PlanDevice>& devices, const PlanOptions& options);
}  // namespace detail

// Returns the cut, number of micro-batches and checkpoint mode with the
// smallest predicted step time among `options`, such that each partition fits
// the memory of its device:
//
//   auto plan =
//       gpipe::balancing::plan(model, input, {torch::kCPU, torch::kCPU});
//   std::cout << plan;
//   gpipe::GPipe pipeline(model, plan.options());
//
// For each number of micro-batches, one micro-batch is profiled
// (balancing/profile.h). On CPUs the profile runs with the number of threads
// that a partition will have, beside copies of the model
// (TimeOptions::concurrent_copies), as many as partitions can compute at the
// same time. The cut is exact for GPipe's schedule with copies beside the
// computation (balancing/chain/chain.h), where a recompute counts as part of
// its backward. Then the schedule with its recomputes is simulated on the cores
// of the machine (gpipe/simulation.h). A prediction does not include the
// optimizer, the loss, or temporary memory of operators.
//
// `input`: a whole mini-batch; see profile_times() for its types and for what
// stays unchanged.
//
// Throws InfeasibleError (balancing/solver/infeasible.h) if nothing fits, with
// what the mode with the smallest need would need. Throws c10::ValueError if
// `model` is null, if `input` has no rows, if there are no devices or fewer
// layers than devices, or if an option is out of its range, and whatever
// profile() throws. Complexity: one profile per number of micro-batches; for
// each of them and each mode, one balance_chain() and one simulation in
// O(chunks * devices). Threads: as for profile_times(). Profiling on CPUs
// changes at::set_num_threads() of the calling thread meanwhile, and restores
// it.
template <typename Input>
Plan plan(torch::nn::Sequential model, Input input,
          const std::vector<PlanDevice>& devices,
          const PlanOptions& options = {}) {
  return detail::plan(model, internal::Value::wrap(std::move(input)), devices,
                      options);
}

// Plans from an existing profile of `profile.rows` rows, for a mini-batch of
// `rows` rows. Times and memory of a micro-batch are assumed to be proportional
// to its rows. `options.profile` is not used.
//
// Throws the errors above except those of profiling, c10::ValueError if the
// profile has no rows, and std::invalid_argument if one of its times or bytes
// is negative or not finite.
// Threads: may be called from any thread. A pure function, except if `workers`
// is 0 on CPUs: then the result also depends on at::get_num_threads() of the
// calling thread and on the number of cores.
Plan plan(const Profile& profile, int64_t rows,
          const std::vector<PlanDevice>& devices,
          const PlanOptions& options = {});

}  // namespace gpipe::balancing
