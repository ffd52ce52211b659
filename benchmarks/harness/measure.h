// Measurement of training steps on the devices of this machine, cut by measured
// time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/options.h"
#include "gpipe/distributed/world.h"

namespace gpipe::benchmarks {

// Returns the number of LibTorch's threads for each of `partitions` on CPUs: an
// equal share, but at least 1.
int64_t threads_per_partition(int64_t partitions);

// Returns the text of these threads, "4 x 1", or that of LibTorch's threads,
// "4", for the plain model (0 partitions). Returns "" if `device` is not a CPU.
std::string threads_text(int64_t partitions, const c10::Device& device);

// A balancer that cuts by measured time. It measures each layer once per shape
// and number of threads, so that all experiments of a run are cut by the same
// times.
class Balancer {
 public:
  // Returns the number of layers per partition. Measures the layers on the
  // device of `sample` for about a second, unless they have been measured.
  //
  // `sample`: a micro-batch.
  // `threads`: the intra-op threads that a partition on a CPU will have.
  std::vector<int64_t> balance(int64_t partitions, torch::nn::Sequential model,
                               const at::Tensor& sample, int64_t threads);

 private:
  std::map<std::pair<std::vector<int64_t>, int64_t>, std::vector<double>>
      costs_;  // seconds per layer, by shape and threads
};

// What the processes of a run do together, for errors.
inline constexpr char kMeasuring[] = "measuring a table";

// A Balancer for each size of the model.
using Balancers = std::map<std::vector<int64_t>, Balancer>;

// Builds the experiment's model from the seed, trains it and returns the
// outcome. All steps use the same mini-batch. An epoch of a memory table has
// one mini-batch.
//
// The outcome has a duration for each epoch that was not skipped; all devices
// are idle at its start and end. Its memory is the peak over all epochs,
// including the mini-batch. If the balance is empty, the layers are cut by
// measured time.
//
// With a `world`, all ranks must call the function. An experiment without
// partitions runs on rank 0; the other ranks return an empty outcome. A
// pipeline then runs the fill-drain schedule as GPipe does: all forwards, then
// all backwards.
//
// Throws MissingDevices if there are more partitions than devices, or if there
// is a `world` whose size differs from the partitions. Throws what training
// throws, such as running out of memory. Threads: Only one call may run at a
// time, since the seed is set for the whole process.
Outcome measure(const Benchmark& benchmark, const Workload& workload,
                Experiment experiment, const RunOptions& options,
                Balancers* balancers);

}  // namespace gpipe::benchmarks
