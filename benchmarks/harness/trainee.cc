#include "benchmarks/harness/trainee.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "balancing/balancing.h"  // with profile_times and balance_cost
#include "balancing/threads_scope.h"
#include "benchmarks/harness/devices.h"

namespace gpipe::benchmarks {
Trainee make_trainee(torch::nn::Sequential model, const Experiment& experiment,
                     const std::vector<c10::Device>& devices) {
  Trainee trainee;
  if (experiment.partitions == 0) {
    trainee.devices = devices_for(1, devices);
    model->to(trainee.devices[0]);
    trainee.parameters = model->parameters();
    trainee.buffers = model->buffers();
    trainee.forward = [model](at::Tensor input) mutable {
      return model->forward(std::move(input));
    };
    if (trainee.devices[0].is_cpu()) {
      trainee.threads = std::to_string(at::get_num_threads());
    }
    return trainee;
  }
  trainee.devices = devices_for(experiment.partitions, devices);
  const int64_t share = threads_per_partition(experiment.partitions);
  GPipe pipeline(model, GPipeOptions(experiment.balance)
                            .devices(trainee.devices)
                            .chunks(experiment.chunks)
                            .checkpoint(experiment.checkpoint)
                            .threads_per_partition(share));
  trainee.parameters = pipeline->parameters();
  trainee.buffers = pipeline->buffers();
  trainee.forward = [pipeline](at::Tensor input) mutable {
    return pipeline->forward(std::move(input));
  };
  if (trainee.devices[0].is_cpu()) {
    trainee.threads =
        std::to_string(experiment.partitions) + " x " + std::to_string(share);
  }
  return trainee;
}

int64_t threads_per_partition(int64_t partitions) {
  return std::max<int64_t>(1, at::get_num_threads() / partitions);
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
