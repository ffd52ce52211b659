// The simulated speed of a training step on devices that this machine does not
// have, from a profile of the layers.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "balancing/profile.h"
#include "benchmarks/harness/experiment.h"
#include "gpipe/simulation.h"

namespace gpipe::benchmarks {

// A model of copies between devices: a copy takes latency + bytes / bandwidth.
struct Link {
  double latency = 0;    // seconds
  double bandwidth = 0;  // bytes per second; 0: unlimited
};

// Measures copies of 16 bytes and of 64 MiB from `from` to `to` and returns the
// link that fits the medians. Repeats each copy for 0.2 s and at least ten
// times. No other work may run on the two devices.
//
// Returns a latency of 0 and unlimited bandwidth if `from` and `to` are the
// same device or are both CPUs, since partitions there copy nothing.
//
// Throws c10::Error if there is not enough memory for the copies. Threads: Any
// thread may call it.
Link measure_link(c10::Device from, c10::Device to);

// Returns a text for each layer. The texts of two layers are equal if the
// layers do the same on the same shapes. A text contains the layer's printed
// form, its parameters and skip tensors, and the shapes of its inputs and
// outputs. The first layer is a kind of its own, since it computes no gradient
// of its input. Allocates no memory: `model` and `input` may be on the meta
// device.
//
// Throws what gpipe::summary() throws.
std::vector<std::string> layer_kinds(const torch::nn::Sequential& model,
                                     const at::Tensor& input);

// Returns true if each of `kinds` is among `of_others`.
bool covers(const std::vector<std::string>& of_others,
            const std::vector<std::string>& kinds);

// Returns the time of a layer of each of `kinds`: the medians of the forward
// and of the backward times of the timed layers of that kind.
//
// `timed`: the kinds of the layers that were timed.
// `times`: the times of those layers, in the same order.
//
// Throws std::invalid_argument, with the kind, if one of `kinds` was not timed,
// or if `timed` and `times` have different lengths.
std::vector<balancing::LayerTime> times_by_kind(
    const std::vector<std::string>& kinds,
    const std::vector<std::string>& timed,
    const std::vector<balancing::LayerTime>& times);

// The profile of a model's layers.
struct LayerProfile {
  balancing::Profile profile;
  std::string note;  // a sentence for readers: what was timed, and where
};

// Profiles the layers of the experiment's model.
//
// Times: Layers of one kind (layer_kinds()) get the median time of that kind.
// If Experiment::size is not empty, its first number is a depth. The function
// then times the shallowest model that has all kinds of layers: one block of a
// Transformer is enough for 48. On a CPU it uses one thread, since several
// threads wait for each other whenever another program is running.
//
// Rows: It times as many rows as take about `seconds`, but at least 1 and at
// most `rows`. More rows are more realistic: the time per row falls with their
// number, since weights are fetched once for all rows, and the papers'
// micro-batches have dozens of rows.
//
// Bytes: Those of the whole model, counted on the meta device.
//
// `device`: the device to time on; if absent, the first of this machine.
//
// Throws what balancing::profile_times(), balancing::profile_memory() and
// Benchmark::model throw. Threads: The rules of profile_times() apply.
LayerProfile profile_layers(const Benchmark& benchmark,
                            const Workload& workload,
                            const Experiment& experiment, int64_t rows,
                            double seconds,
                            std::optional<c10::Device> device = {});

// Returns the costs of the experiment's stages (balancing/stage_costs.h) on
// devices that are `device_speed` times as fast as the profiled one, with
// copies over links like `link`. With 0 partitions the model is one stage, and
// the mini-batch one micro-batch. Otherwise the experiment must have a balance.
// Throws as balancing::stage_costs(). Thread-safe.
Costs costs_of(const balancing::Profile& profile, const Experiment& experiment,
               const Link& link, double device_speed);

// Simulates a step of the experiment with GPipe's schedule. The checkpoint mode
// decides which micro-batches are recomputed. A recompute starts as soon as the
// rank is free, even if the gradient has not arrived (as in GPipe::forward).
// With 0 partitions the step is one forward and backward of the mini-batch,
// without recompute. The loss and the optimizer are not included. Throws what
// costs_of() throws.
Timeline simulate_step(const balancing::Profile& profile,
                       const Experiment& experiment, const Link& link,
                       double device_speed);

// Returns the `device_speed` with which simulate_step() takes `seconds` (above
// 0), to a relative error of 1e-9. Throws std::invalid_argument if the copies
// alone take longer.
double speed_for(const balancing::Profile& profile,
                 const Experiment& experiment, const Link& link,
                 double seconds);

// The simulated links and devices, and the profile that they are based on.
struct SimulateOptions {
  // Each link. The default is for GPUs on PCIe 3.0 with 16 lanes and without
  // NVLink, as in torchgpipe's machine (Tesla P40) and GPipe's table 3 (P100).
  // Such a link has 15.75e9 bytes/s in theory and about 10e9 bytes/s for copies
  // from GPU to GPU; a copy takes 10 us to start.
  Link link = {10e-6, 10e9};
  // The device to profile on; if absent, the first of this machine.
  std::optional<c10::Device> device;
  // The largest number of rows to profile with. Times are assumed to be
  // proportional to rows.
  int64_t profile_rows = 8;
  // The approximate time of a profile in seconds (see profile_layers()).
  double profile_seconds = 90;
  // The speed of a simulated device relative to the profiled device. With 0 the
  // simulator computes it, so that Benchmark::yardstick is as fast as
  // published. Then devices and links are those of the same machine. Without a
  // yardstick the base experiment is used, or, if it has no published samples
  // per second, the first experiment that has them. The speed is 1 if no
  // experiment has them, or if the workload is not of the published size.
  double device_speed = 0;
};

// A simulator that keeps the profiles of a run: one per size of the model. Not
// thread-safe. Profiling restores LibTorch's default generators afterwards.
class Simulator {
 public:
  // `benchmark` and `workload` must outlive the simulator. `workload` is one of
  // the benchmark's.
  Simulator(const Benchmark& benchmark, const Workload& workload,
            SimulateOptions options);

  // Profiles the layers on a device of this machine (see profile_layers()) and
  // simulates a step of the experiment (gpipe/simulation.h), with GPipe's
  // schedule and the recomputes of its checkpoint mode. An empty balance
  // becomes the best cut for this profile (balancing/plan.h).
  //
  // Throws std::invalid_argument if no device speed reaches the published speed
  // with these links. Throws what profiling, balancing and the model throw.
  Outcome simulate(const Experiment& experiment);

  // Returns the profile of the experiment's model. The reference is valid as
  // long as the simulator. Throws what profile_layers() throws.
  const balancing::Profile& profile_of(const Experiment& experiment);

  // Returns the speed of the simulated devices; see
  // SimulateOptions::device_speed. Throws as simulate().
  double device_speed();

  // Returns sentences for readers: how the profiles were made, and with which
  // links and device speed the steps were simulated.
  std::vector<std::string> notes() const;

 private:
  std::vector<int64_t> balance_of(const Experiment& experiment);
  Experiment with_balance(Experiment experiment);
  double find_device_speed();

  const Benchmark& benchmark_;
  const Workload& workload_;
  SimulateOptions options_;
  double device_speed_ = 0;  // 0: not known yet
  std::map<std::vector<int64_t>, balancing::Profile> profiles_;
  std::vector<std::string> notes_;
};

}  // namespace gpipe::benchmarks
