#include "benchmarks/harness/trainee.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "balancing/balancing.h"  // with profile_times and balance_cost
#include "balancing/threads_scope.h"
#include "benchmarks/harness/devices.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"

namespace gpipe::benchmarks {
namespace {

// Returns a function that runs forward, loss and backward.
std::function<void(at::Tensor, at::Tensor)> train_by(
    std::function<at::Tensor(at::Tensor)> forward, LossOf loss) {
  return [forward = std::move(forward), loss = std::move(loss)](
             at::Tensor input, at::Tensor target) {
    loss(forward(std::move(input)), std::move(target)).backward();
  };
}

}  // namespace

Trainee make_trainee(torch::nn::Sequential model, const Experiment& experiment,
                     const LossOf& loss,
                     const std::vector<c10::Device>& devices) {
  Trainee trainee;
  if (experiment.partitions == 0) {
    trainee.devices = devices_for(1, devices);
    model->to(trainee.devices[0]);
    trainee.parameters = model->parameters();
    trainee.buffers = model->buffers();
    trainee.train = train_by(
        [model](at::Tensor input) mutable {
          return model->forward(std::move(input));
        },
        loss);
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
  trainee.train = train_by(
      [pipeline](at::Tensor input) mutable {
        return pipeline->forward(std::move(input));
      },
      loss);
  trainee.threads = threads_text(experiment.partitions, trainee.devices[0]);
  return trainee;
}

Trainee make_distributed_trainee(torch::nn::Sequential model,
                                 const Experiment& experiment,
                                 const LossOf& loss, const c10::Device& device,
                                 std::shared_ptr<World> world) {
  Trainee trainee;
  trainee.devices = {device};
  const int64_t share = threads_per_partition(experiment.partitions);
  DistributedPipeline pipeline(std::move(model),
                               DistributedOptions(experiment.balance)
                                   .device(device)
                                   .checkpoint(experiment.checkpoint)
                                   .threads_per_partition(share),
                               std::move(world));
  trainee.parameters = pipeline->parameters();
  trainee.buffers = pipeline->buffers();
  trainee.train = [pipeline, loss, chunks = experiment.chunks](
                      at::Tensor input, at::Tensor target) mutable {
    // The number of micro-batches that torch::chunk makes.
    const int64_t count = num_microbatches(input.size(0), chunks);
    pipeline->train_step(
        std::move(input), std::move(target), loss,
        fill_drain(static_cast<int>(pipeline->balance().size()),
                   static_cast<int>(count)));
  };
  trainee.threads = threads_text(experiment.partitions, device);
  return trainee;
}

int64_t threads_per_partition(int64_t partitions) {
  return std::max<int64_t>(1, at::get_num_threads() / partitions);
}

std::string threads_text(int64_t partitions, const c10::Device& device) {
  return device.is_cpu() ? std::to_string(partitions) + " x " +
                               std::to_string(threads_per_partition(partitions))
                         : "";
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
