#include "benchmarks/harness/measure.h"

#include <torch/utils.h>

#include <algorithm>
#include <utility>

// After LibTorch's headers, which define the same macros unless glog has.
#include <glog/logging.h>

#include "benchmarks/harness/device_memory.h"
#include "benchmarks/harness/devices.h"
#include "benchmarks/harness/optimizer.h"
#include "benchmarks/harness/outcome_table.h"
#include "benchmarks/harness/throughput.h"

namespace gpipe::benchmarks {
namespace {

void set_balance(Experiment* experiment, const torch::nn::Sequential& model,
                 const at::Tensor& input, const c10::Device& device,
                 Balancers* balancers) {
  if (experiment->partitions == 0 || !experiment->balance.empty()) return;
  if (experiment->partitions == 1) {
    experiment->balance = {static_cast<int64_t>(model->size())};
    return;
  }
  // Of ceil(batch / chunks) rows, as torch::chunk makes them.
  const int64_t rows =
      (experiment->batch_size + experiment->chunks - 1) / experiment->chunks;
  experiment->balance = (*balancers)[experiment->size].balance(
      experiment->partitions, model, input.narrow(0, 0, rows).to(device),
      threads_per_partition(experiment->partitions));
}

void log_settings(const Outcome& outcome) {
  const Experiment& experiment = outcome.experiment;
  std::string text = experiment.name +
                     " | batch size: " + std::to_string(experiment.batch_size);
  if (experiment.partitions > 0) {
    text += ", chunks: " + std::to_string(experiment.chunks) + ", balance: [" +
            balance_text(experiment.balance) +
            "], checkpoint: " + name_of(experiment.checkpoint);
  }
  text += ", devices: " + outcome.devices;
  if (!outcome.threads.empty()) text += ", threads: " + outcome.threads;
  LOG(INFO) << text;
}

}  // namespace

Outcome measure(const Benchmark& benchmark, const Workload& workload,
                Experiment experiment, const MeasureOptions& options,
                Balancers* balancers) {
  const auto devices =
      devices_for(std::max<int64_t>(1, experiment.partitions), options.devices);
  const MemoryWatch watch(devices);
  torch::manual_seed(options.seed);
  torch::nn::Sequential model = benchmark.model(experiment);
  at::Tensor input = workload.input(experiment.batch_size);
  at::Tensor target = workload.target(experiment.batch_size);
  set_balance(&experiment, model, input, devices.front(), balancers);
  Trainee trainee = make_trainee(std::move(model), experiment, devices);
  input = input.to(trainee.devices.front());
  target = target.to(trainee.devices.back());

  Outcome outcome;
  outcome.experiment = std::move(experiment);
  outcome.devices = devices_text(trainee.devices);
  outcome.threads = trainee.threads;
  outcome.samples = benchmark.subject == Subject::kMemory
                        ? outcome.experiment.batch_size
                        : workload.samples_per_epoch;
  log_settings(outcome);

  const auto optimizer = make_optimizer(benchmark.optimizer, trainee.parameters,
                                        benchmark.learning_rate);
  const auto step = [&](int64_t rows) {
    const at::Tensor output = trainee.forward(input.narrow(0, 0, rows));
    benchmark.loss(output, target.narrow(0, 0, rows)).backward();
    optimizer->step();
    optimizer->zero_grad();
  };
  watch.reset_peaks();
  outcome.durations =
      time_epochs(outcome.experiment.name,
                  {outcome.samples, outcome.experiment.batch_size,
                   options.epochs, options.skip_epochs},
                  trainee.devices, step);
  outcome.memory =
      watch.read({trainee.parameters, trainee.buffers, state_of(*optimizer)});
  return outcome;
}

}  // namespace gpipe::benchmarks
