#include "benchmarks/harness/trainee.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "balancing/balancing.h"
#include "benchmarks/harness/devices.h"

namespace gpipe::benchmarks {

Trainee make_trainee(torch::nn::Sequential model, const Experiment& experiment,
                     const std::vector<c10::Device>& devices) {
  Trainee trainee;
  const int64_t threads = at::get_num_threads();
  if (experiment.partitions == 0) {
    trainee.devices = devices_for(1, devices);
    model->to(trainee.devices[0]);
    trainee.parameters = model->parameters();
    trainee.forward = [model](at::Tensor input) mutable {
      return model->forward(std::move(input));
    };
    if (trainee.devices[0].is_cpu()) trainee.threads = std::to_string(threads);
    return trainee;
  }
  trainee.devices = devices_for(experiment.partitions, devices);
  const int64_t share =
      std::max<int64_t>(1, threads / experiment.partitions);
  GPipe pipeline(model, GPipeOptions(experiment.balance)
                            .devices(trainee.devices)
                            .chunks(experiment.chunks)
                            .checkpoint(experiment.checkpoint)
                            .threads_per_partition(share));
  trainee.parameters = pipeline->parameters();
  trainee.forward = [pipeline](at::Tensor input) mutable {
    return pipeline->forward(std::move(input));
  };
  if (trainee.devices[0].is_cpu()) {
    trainee.threads =
        std::to_string(experiment.partitions) + " x " + std::to_string(share);
  }
  return trainee;
}

const std::vector<int64_t>& Balancer::balance(int64_t partitions,
                                              torch::nn::Sequential model,
                                              const at::Tensor& sample) {
  auto& balance = known_[{partitions, sample.sizes().vec()}];
  if (balance.empty()) {
    balance = balancing::balance_by_time(
        partitions, std::move(model), sample,
        balancing::TimeOptions().timeout(1.0).device(sample.device()));
  }
  return balance;
}

}  // namespace gpipe::benchmarks
