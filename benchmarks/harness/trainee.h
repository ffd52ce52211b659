// A model that is ready for training, plain or as a pipeline.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "gpipe/distributed/world.h"

namespace gpipe::benchmarks {

using LossOf = std::function<at::Tensor(at::Tensor output, at::Tensor target)>;

// A model with a function that trains it.
struct Trainee {
  // Runs forward, loss and backward of a mini-batch of any number of rows.
  std::function<void(at::Tensor input, at::Tensor target)> train;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  // The devices of the partitions. Inputs must be on the first one, targets on
  // the last one.
  std::vector<c10::Device> devices;
  std::string threads;  // CPU threads: "2" or "4 x 1"; "" on other devices
};

// Makes a pipeline with the balance, chunks and checkpoint mode of
// `experiment`. With 0 partitions, makes the plain `model` on the first device.
// On CPUs, each partition gets threads_per_partition() threads.
//
// Throws MissingDevices if there are fewer devices than partitions.
Trainee make_trainee(torch::nn::Sequential model, const Experiment& experiment,
                     const LossOf& loss,
                     const std::vector<c10::Device>& devices);

// Makes this rank's part of a pipeline with a process per partition. It runs
// the same fill-drain schedule as GPipe: all forwards, then all backwards. All
// ranks must pass the same input and target to `train`. On CPUs, each rank gets
// threads_per_partition() threads.
//
// `device`: the device of this rank.
Trainee make_distributed_trainee(torch::nn::Sequential model,
                                 const Experiment& experiment,
                                 const LossOf& loss, const c10::Device& device,
                                 std::shared_ptr<World> world);

// Returns the number of LibTorch's threads for each of `partitions` on CPUs: an
// equal share, but at least 1.
int64_t threads_per_partition(int64_t partitions);

// Returns the text of these threads, "4 x 1", or "" if `device` is not a CPU.
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

}  // namespace gpipe::benchmarks
