// Speed of a training step on devices that there are not.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "balancing/profile.h"
#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/outcome.h"

namespace gpipe::benchmarks {

// The links between devices, and how the profiled device compares with them.
struct SimulateOptions {
  // Seconds of a copy, and bytes per second of a link; 0: unlimited. The
  // defaults are for GPUs on PCIe 3.0 with 16 lanes and no NVLink, as in
  // torchgpipe's machine (Tesla P40) and GPipe's table 3 (P100): 15.75e9 in
  // theory, some 10e9 for copies from GPU to GPU, and 10 us to start one.
  double latency = 10e-6;
  double bandwidth = 10e9;
  // Of a profile: its device, or this machine's first; rows at most, and about
  // how long it may take (see layer_profile.h). Times are taken to be
  // proportional to rows.
  std::optional<c10::Device> device;
  int64_t profile_rows = 8;
  double profile_seconds = 90;
  // Of the simulated devices, by the profiled one; 0: such that the benchmark's
  // base experiment (or, if that has no published samples per second, the first
  // that has) is as fast as published, so that links and devices are of one
  // kind. 1 if none is published, or the workload is not the published one.
  double device_speed = 0;
};

// Keeps the profiles of a run: one per size of the model. Threads: one at a
// time; profiling sets LibTorch's default generators back afterwards.
class Simulator {
 public:
  // The two must outlive the simulator; the workload is one of the benchmark's.
  Simulator(const Benchmark& benchmark, const Workload& workload,
            SimulateOptions options);

  // A step of the experiment by GPipe's schedule, with the recomputes of its
  // checkpoint mode, as the simulator (gpipe/simulation.h) says, from a profile
  // of the layers on a device of this machine. An empty balance becomes the
  // exact cut for this profile (balancing/plan.h).
  //
  // See layer_profile.h for what is profiled.
  //
  // Errors: std::invalid_argument if the published speed cannot be reached with
  // these links; those of profiling, balancing and of the model.
  Outcome simulate(const Experiment& experiment);

  // Sentences for the reader: how the profiles were made, and with which links
  // and device_speed the steps were simulated.
  std::vector<std::string> notes() const;

 private:
  const balancing::Profile& profile_of(const Experiment& experiment);
  std::vector<int64_t> balance_of(const Experiment& experiment);
  Experiment with_balance(Experiment experiment);
  double device_speed();

  const Benchmark& benchmark_;
  const Workload& workload_;
  SimulateOptions options_;
  double device_speed_ = 0;  // 0: not known yet
  std::map<std::vector<int64_t>, balancing::Profile> profiles_;
  std::vector<std::string> notes_;
};

}  // namespace gpipe::benchmarks
