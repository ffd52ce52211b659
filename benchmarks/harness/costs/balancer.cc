#include "benchmarks/harness/costs/balancer.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "balancing/balancing.h"  // with profile_times and balance_cost
#include "balancing/profile/threads_scope.h"

namespace gpipe::benchmarks {

int64_t threads_per_partition(int64_t partitions) {
  return std::max<int64_t>(1, at::get_num_threads() / partitions);
}

std::string threads_text(int64_t partitions, const c10::Device& device) {
  if (!device.is_cpu()) return "";
  if (partitions == 0) return std::to_string(at::get_num_threads());
  return std::to_string(partitions) + " x " +
         std::to_string(threads_per_partition(partitions));
}

std::vector<int64_t> Balancer::balance(int64_t partitions,
                                       torch::nn::Sequential model,
                                       const at::Tensor& sample,
                                       int64_t threads) {
  auto& costs = costs_[{sample.sizes().vec(), threads}];
  if (costs.empty()) {
    const balancing::ThreadsScope scope(threads);
    costs = balancing::totals(balancing::profile_times(
        std::move(model), sample,
        balancing::TimeOptions().timeout(1.0).device(sample.device())));
  }
  return balancing::balance_cost(costs, partitions);
}

}  // namespace gpipe::benchmarks
