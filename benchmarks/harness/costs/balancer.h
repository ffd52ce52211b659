// A cut by measured time, and the threads of the partitions.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

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

}  // namespace gpipe::benchmarks
