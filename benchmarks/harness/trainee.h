// A model that is ready to be trained, plain or as a pipeline.
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

struct Trainee {
  // Forward, loss and backward of some rows.
  std::function<void(at::Tensor input, at::Tensor target)> train;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  std::vector<c10::Device> devices;  // front: inputs, back: outputs
  std::string threads;               // "2" or "4 x 1", on CPUs; else ""
};

// `experiment` with its own balance; 0 partitions: `model` itself on the first
// device. On CPUs the partitions share the threads that the plain model has;
// with more partitions than threads each has one.
Trainee make_trainee(torch::nn::Sequential model, const Experiment& experiment,
                     const LossOf& loss,
                     const std::vector<c10::Device>& devices);

// This rank's part of a pipeline of processes, which takes the same turns as a
// GPipe: all forwards, then all backwards. Input and target are those of all
// ranks. `device`: of this rank. On a CPU it takes one thread of each machine's
// share, as above.
Trainee make_distributed_trainee(torch::nn::Sequential model,
                                 const Experiment& experiment,
                                 const LossOf& loss, const c10::Device& device,
                                 std::shared_ptr<World> world);

// The share of LibTorch's threads that each of `partitions` on CPUs has.
int64_t threads_per_partition(int64_t partitions);

// Cuts by measured time. Measures each layer once per shape and number of
// threads, so that all experiments of a run are cut by the same figures.
class Balancer {
 public:
  // `sample`: a micro-batch. Measures on its device, for about a second; on a
  // CPU with as many intra-op `threads` as a partition will have.
  std::vector<int64_t> balance(int64_t partitions, torch::nn::Sequential model,
                               const at::Tensor& sample, int64_t threads);

 private:
  std::map<std::pair<std::vector<int64_t>, int64_t>, std::vector<double>>
      costs_;  // by shape and threads
};

}  // namespace gpipe::benchmarks
