// Chooses the cut, the number of micro-batches, the schedule with its stages
// per rank, and what is recomputed or offloaded: the choice with the smallest
// predicted step time that fits the memory.
#pragma once

#include <c10/core/Device.h>
#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "balancing/profile.h"
#include "gpipe/gpipe.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

namespace gpipe::balancing {

// The device of one rank.
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
  // Bytes per second between the device and its host, each way, > 0. Used with
  // PlanOptions::offload().
  TORCH_ARG(double, host_bandwidth) = std::numeric_limits<double>::infinity();
};

// Returns how many of the `bytes` of memory of `device` training may use, for
// PlanDevice::memory_bytes(). On CUDA, LibTorch keeps a workspace of cuBLAS for
// each thread that computes on the rank's stream: the worker for forwards, and
// autograd's thread of the device for backwards. Each takes 32 MiB on Hopper
// and less on others (getChosenWorkspaceSize() of LibTorch). Elsewhere all
// bytes. Negative bytes are returned as they are, and plan() refuses them.
// Threads: pure function.
double usable_memory(torch::Device device, double bytes);

// The connection from one device to another; see PlanOptions::latency().
struct PlanLink {
  double latency = 0;                                          // seconds
  double bandwidth = std::numeric_limits<double>::infinity();  // bytes/s, > 0
};

// The candidates that plan() tries, and the assumptions of its prediction.
struct PlanOptions {
  // Names of schedule_names() (gpipe/schedule.h) except forward-only. Empty:
  // all. For forward() and backward(), give "fill-drain" alone, and 1 stage per
  // rank.
  TORCH_ARG(std::vector<std::string>, schedules);
  // The numbers of stages per rank to try, with schedules that have a choice or
  // have just that many.
  TORCH_ARG(std::vector<int64_t>, stages_per_rank) = {1, 2, 4};
  // Whether to try, without recomputes, to keep what backwards need on the host
  // in between: with_offload() for the cells of distant_cells(schedule, 2).
  // Tried only if no device is a CPU, since train_step() copies nothing there.
  TORCH_ARG(bool, offload) = false;
  // Elements of the input that each micro-batch gets whole, which options() of
  // the plan does not have: see GPipeOptions::unsplit. Not used with a profile.
  TORCH_ARG(std::vector<int64_t>, unsplit) = {};
  // The numbers of micro-batches and the checkpoint modes to try. If `chunks`
  // is empty, plan() tries 1, 2, 4, ... up to 8 per partition and up to the
  // rows of the mini-batch, as long as the layers run with as few rows as a
  // micro-batch has. With both kNever and kAlways, and a memory limit,
  // plan() also tries to recompute only the stages for which memory is short.
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
  // If not empty, the links of each pair of n devices instead: links[a * n + b]
  // from device a to device b.
  TORCH_ARG(std::vector<PlanLink>, links);
  // With replicas of the pipeline, one entry per device: at the end of a step,
  // the device adds up gradients with its twins in `latency` seconds plus its
  // trained bytes divided by `bandwidth`. plan_replicas()
  // (balancing/plan_replicas.h) sets this. Empty: there is one replica.
  TORCH_ARG(std::vector<PlanLink>, gradient_sums);
  // Seconds that each action of a schedule takes besides its layers. Absent: 10
  // us if plan() profiles a model for CPUs (docs/results/overhead.md), else 0.
  TORCH_ARG(std::optional<double>, overhead);
  // How many partitions can compute at the same time. 0: all on accelerators;
  // on CPUs, as many as the cores allow if each partition uses its share of
  // threads.
  TORCH_ARG(int64_t, workers) = 0;
  // Options of each profile. plan() makes one profile per number of
  // micro-batches.
  TORCH_ARG(TimeOptions, profile) = TimeOptions();
};

// The prediction for one rank of the chosen cut. With one stage per rank, that
// is one partition.
struct PlannedPartition {
  torch::Device device = torch::kCPU;
  // `first_layer` of the first stage, and the layers of all stages.
  int64_t first_layer = 0, layers = 0;
  double forward = 0, backward = 0;  // seconds per micro-batch
  double memory_bytes = 0;           // peak, from LayerMemory and param_scale
  double memory_limit = 0;
  double idle = 0;  // fraction of the step, 0 to 1
  // Fraction of the idle time of all partitions, 0 to 1; 0 if no partition is
  // idle.
  double bubble_share = 0;
  std::vector<int64_t>
      stages;  // the rank's entries of Plan::balance, ascending
};

// A combination of choices that plan() tried.
struct PlanCandidate {
  int64_t chunks = 1;
  Checkpoint checkpoint = Checkpoint::kExceptLast;
  double step_seconds = 0;  // infinity if it does not fit
  std::string remark;       // why it does not fit, or empty
  std::string schedule;     // a name of schedule_names()
  int64_t stages_per_rank = 1;
  bool offload = false;
  // Whether only the stages for which memory is short are recomputed.
  // `checkpoint` is kAlways then.
  bool recompute_where_needed = false;
  // False if `step_seconds` is a lower bound that is longer than the best step
  // with the same schedule and stages per rank.
  bool simulated = true;
};

// What determines the step time of a plan.
enum class PlanBoundKind {
  kCompute,  // a rank is busy nearly all the time
  kBubble,   // ranks wait for each other
  kMemory,   // with more memory there would be a faster plan
  kLinks,    // ranks wait for copies, or for sums of gradients
};

// Returns "compute", "bubble", "memory" or "links".
const char* to_string(PlanBoundKind kind);

// The answer to what bounds a step.
struct PlanBound {
  PlanBoundKind kind = PlanBoundKind::kCompute;
  int64_t rank = 0;  // the busiest one, or the one with the fullest memory
  // The fraction of the step, 0 to 1, in which that rank computes, or waits for
  // others, or for copies and sums; or the fraction of its memory that is in
  // use.
  double share = 0;
};

// The predicted step with other devices.
struct PlanAlternative {
  std::string change;  // "one more device", "twice the memory", ...
  double step_seconds = 0;
};

// The choice of plan(), with the predictions behind it.
struct Plan {
  std::vector<int64_t> balance;  // layers per stage
  int64_t chunks = 1;
  Checkpoint checkpoint = Checkpoint::kExceptLast;
  // Predicted: forward and backward of a mini-batch, and sums of gradients.
  double step_seconds = 0;
  double sum_seconds = 0;  // the part for the sums; not in `timeline`
  std::vector<PlannedPartition> partitions;  // one per rank
  std::vector<PlanCandidate> candidates;

  std::string schedule_name = "fill-drain";  // one of schedule_names()
  int64_t stages_per_rank = 1;
  Placement placement = Placement::kLoop;
  bool offload = false;
  // If not empty: whether all micro-batches of a stage are recomputed, by
  // stage, at least one of them. Other stages are not. `checkpoint` is kAlways
  // then, so that forward() also stays within the memory.
  std::vector<bool> recomputed_stages;
  // The predicted step. to_svg(timeline) (gpipe/simulation.h) draws it.
  Timeline timeline;

  // The best candidate of each schedule with each number of stages per rank,
  // with and without offload, that fits; the fastest first.
  std::vector<PlanCandidate> families;
  std::optional<PlanBound> bound;
  std::vector<PlanAlternative> alternatives;

  // Returns the options for GPipe's constructor.
  //
  // Threads: several threads may call this at once.
  GPipeOptions options() const;

  // Returns the schedule for train_step(), with its recomputes and copies to
  // and from the host.
  //
  // Threads: as above.
  Schedule schedule() const;
};

// Prints a line with the choice, tables of the partitions and of the families,
// what bounds the step, and what other devices would give.
//
// Threads: as for the stream.
std::ostream& operator<<(std::ostream& stream, const Plan& plan);

// Returns `plan` as JSON: one object with the choice, its partitions, families,
// bound and alternatives. Seconds and bytes are plain numbers, and null where
// they are infinite (no memory limit). The timeline is left out; see
// to_chrome_trace() (gpipe/simulation.h).
//
// Threads: pure function.
std::string to_json(const Plan& plan);

// Parses the output of to_json(). The result has all members except
// `candidates`, `timeline` and PlannedPartition::first_layer and bubble_share;
// options() and schedule() return what they returned before.
//
// `source`: the name of the text in error messages, for example the file's
// path.
//
// Throws c10::ValueError if `text` is not JSON (with line and column), if its
// format is a different one, if a member is unknown or out of its range, or if
// stages, layers, ranks, placement, schedule, recomputed stages and checkpoint
// mode do not fit together.
// Threads: pure function.
Plan plan_from_json(const std::string& text, const std::string& source);

// Reads a plan from a file. Throws c10::ValueError also if `path` cannot be
// read. Threads: several threads may call this at once.
Plan read_plan(const std::string& path);

namespace detail {
Plan plan(const torch::nn::Sequential& model, const internal::Value& input,
          const std::vector<PlanDevice>& devices, const PlanOptions& options);
}  // namespace detail

// Returns the choice with the smallest predicted step time among `options`,
// such that each rank fits the memory of its device:
//
//   auto plan =
//       gpipe::balancing::plan(model, input, {torch::kCPU, torch::kCPU});
//   std::cout << plan;
//   gpipe::GPipe pipeline(model, plan.options());
//   pipeline->train_step(input, target, loss, plan.schedule());
//
// For each number of micro-batches, one micro-batch is profiled
// (balancing/profile.h). On CPUs the profile runs with the number of threads
// that a rank will have, beside copies of the model
// (TimeOptions::concurrent_copies), as many as ranks can compute at the same
// time.
//
// Each candidate is a schedule with a number of stages per rank, micro-batches,
// a recompute mode, and with or without offload. Candidates and cuts whose
// lower bounds are too long are left out. The others are simulated
// (gpipe/simulation.h), with copies beside the computation, on the cores of the
// machine. If a candidate has few cuts, all are tried; otherwise local
// searches improve the most even ones. Results are reproducible. Among equally
// fast candidates the simplest one is chosen: without offload, the first of
// schedule_names(), few stages per rank, few micro-batches. See
// balancing/planner/search.h.
//
// A backward that is split into two parts takes LayerTime::backward_input and
// backward_weight. They are measured if a candidate splits backwards. A given
// profile may lack them (TimeOptions::split_backward); then half of the
// backward is assumed for each. A prediction does not include the optimizer,
// the loss, the mini-batch (but what the first layer saves of it) and its
// target, which lie on the first and the last device, or temporary memory of
// operators.
//
// `input`: a whole mini-batch; see profile_times() for its types and for what
// stays unchanged.
//
// Throws InfeasibleError (balancing/infeasible.h) if nothing fits, with
// what the candidate with the smallest need would need. Throws c10::ValueError
// if `model` is null, if `input` has no rows, if there are no devices or fewer
// layers than devices, if a schedule does not exist or none can have any of the
// `stages_per_rank` with so many layers, or if an option is out of its range,
// std::invalid_argument if a step might take longer than the largest double, or
// its layers more bytes, and whatever profile() throws. Complexity: one profile
// per number of micro-batches. A plan for 64 devices and 1,000 layers takes
// seconds (docs/results/schedules.md). Threads: as for profile_times().
// Profiling on CPUs changes at::set_num_threads() of the calling thread
// meanwhile, and restores it.
template <typename Input>
Plan plan(torch::nn::Sequential model, Input input,
          const std::vector<PlanDevice>& devices,
          const PlanOptions& options = {}) {
  return detail::plan(model, internal::Value::wrap(std::move(input)), devices,
                      options);
}

// Plans from an existing profile of `profile.rows` rows, for a mini-batch of
// `rows` rows. Times of micro-batches (except LayerTime::accumulate) are
// assumed to be proportional to the mean of their rows, and memory to the rows
// of the largest one. `options.profile` is not used.
//
// Throws the errors above except those of profiling, c10::ValueError if the
// profile has no rows, and std::invalid_argument if one of its times or bytes
// is negative or not finite, if a layer has more trained_bytes than
// parameter_bytes, or if it has not as many times as memory of layers. Threads:
// may be called from any thread. A pure function, except if `workers` is 0 on
// CPUs: then the result also depends on at::get_num_threads() of the calling
// thread and on the number of cores.
Plan plan(const Profile& profile, int64_t rows,
          const std::vector<PlanDevice>& devices,
          const PlanOptions& options = {});

}  // namespace gpipe::balancing
