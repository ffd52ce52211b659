// The simulated speed of a training step on devices that this machine does not
// have.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "balancing/profile.h"
#include "benchmarks/harness/costs/links.h"
#include "benchmarks/harness/experiment/benchmark.h"
#include "benchmarks/harness/experiment/outcome.h"

namespace gpipe::benchmarks {

// The simulated links and devices, and the profile that they are based on.
struct SimulateOptions {
  // The latency (seconds) and the bandwidth (bytes per second, 0: unlimited) of
  // each link. The defaults are for GPUs on PCIe 3.0 with 16 lanes and without
  // NVLink, as in torchgpipe's machine (Tesla P40) and GPipe's table 3 (P100).
  // Such a link has 15.75e9 bytes/s in theory and about 10e9 bytes/s for copies
  // from GPU to GPU; a copy takes 10 us to start.
  double latency = 10e-6;
  double bandwidth = 10e9;
  // The device to profile on; if absent, the first of this machine.
  std::optional<c10::Device> device;
  // The largest number of rows to profile with. Times are assumed to be
  // proportional to rows.
  int64_t profile_rows = 8;
  // The approximate time of a profile in seconds (see layer_profile.h).
  double profile_seconds = 90;
  // The speed of a simulated device relative to the profiled device. With 0 the
  // simulator computes it, so that the benchmark's base experiment is as fast
  // as published. Then devices and links are those of the same machine. If the
  // base has no published samples per second, the first experiment that has
  // them is used. The speed is 1 if no experiment has them, or if the workload
  // is not of the published size.
  double device_speed = 0;
};

// The following functions describe their result by a sentence in `notes`.

// Returns the speed of the devices if it does not follow from a published
// speed: the option, or 1 for a reduced workload (`small`). Otherwise returns 0
// and adds nothing.
double chosen_speed(const SimulateOptions& options, bool small,
                    std::vector<std::string>* notes);

// Returns the speed at which `experiment` has `published` samples per second.
// `whose`: the owner of this figure, "its published". Throws as speed_for().
double speed_as_published(const balancing::Profile& profile,
                          const Experiment& experiment, const Link& link,
                          double published, const std::string& whose,
                          std::vector<std::string>* notes);

// Returns "Links: 10 us and 10 GB/s".
std::string links_text(const Link& link);

// A simulator that keeps the profiles of a run: one per size of the model. Not
// thread-safe. Profiling restores LibTorch's default generators afterwards.
class Simulator {
 public:
  // `benchmark` and `workload` must outlive the simulator. `workload` is one of
  // the benchmark's.
  Simulator(const Benchmark& benchmark, const Workload& workload,
            SimulateOptions options);

  // Profiles the layers on a device of this machine (see layer_profile.h) and
  // simulates a step of the experiment (gpipe/simulation.h), with GPipe's
  // schedule and the recomputes of its checkpoint mode. An empty balance
  // becomes the best cut for this profile (balancing/plan.h).
  //
  // Throws std::invalid_argument if no device speed reaches the published speed
  // with these links. Throws what profiling, balancing and the model throw.
  Outcome simulate(const Experiment& experiment);

  // Returns sentences for readers: how the profiles were made, and with which
  // links and device speed the steps were simulated.
  std::vector<std::string> notes() const;

 private:
  const balancing::Profile& profile_of(const Experiment& experiment);
  std::vector<int64_t> balance_of(const Experiment& experiment);
  Experiment with_balance(Experiment experiment);
  double device_speed();
  Link link() const { return {options_.latency, options_.bandwidth}; }

  const Benchmark& benchmark_;
  const Workload& workload_;
  SimulateOptions options_;
  double device_speed_ = 0;  // 0: not known yet
  std::map<std::vector<int64_t>, balancing::Profile> profiles_;
  std::vector<std::string> notes_;
};

}  // namespace gpipe::benchmarks
