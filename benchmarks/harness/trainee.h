// A model that is ready to be trained, plain or as a pipeline.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "gpipe/gpipe.h"

namespace gpipe::benchmarks {

struct Trainee {
  std::function<at::Tensor(at::Tensor)> forward;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  std::vector<c10::Device> devices;  // front: inputs, back: outputs
  std::string threads;               // "2" or "4 x 1", on CPUs; else ""
};

// `experiment` with its own balance; 0 partitions: `model` itself on the first
// device. On CPUs the partitions share the threads that the plain model has;
// with more partitions than threads each has one.
Trainee make_trainee(torch::nn::Sequential model, const Experiment& experiment,
                     const std::vector<c10::Device>& devices);

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
