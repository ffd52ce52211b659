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
  std::vector<c10::Device> devices;  // front: inputs, back: outputs
  std::string threads;               // "2" or "4 x 1", on CPUs; else ""
};

// `experiment` with its own balance; 0 partitions: `model` itself on the first
// device. On CPUs the partitions share the threads that the plain model has;
// with more partitions than threads each has one.
Trainee make_trainee(torch::nn::Sequential model, const Experiment& experiment,
                     const std::vector<c10::Device>& devices);

// Cuts by measured time, and remembers the cut, so that all experiments with
// as many partitions have the same.
class Balancer {
 public:
  // `sample`: a micro-batch. Measures on its device, about a second.
  const std::vector<int64_t>& balance(int64_t partitions,
                                      torch::nn::Sequential model,
                                      const at::Tensor& sample);

 private:
  std::map<std::pair<int64_t, std::vector<int64_t>>, std::vector<int64_t>>
      known_;  // by partitions and the sample's shape
};

}  // namespace gpipe::benchmarks
