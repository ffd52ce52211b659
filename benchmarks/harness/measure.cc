#include "benchmarks/harness/measure.h"

#include <glog/logging.h>
#include <torch/utils.h>

#include <algorithm>
#include <utility>

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
  // torch::chunk makes micro-batches of ceil(batch / chunks) rows.
  const int64_t rows =
      (experiment->batch_size + experiment->chunks - 1) / experiment->chunks;
  experiment->balance = (*balancers)[experiment->size].balance(
      experiment->partitions, model, input.narrow(0, 0, rows).to(device),
      threads_per_partition(experiment->partitions));
}

// Returns the devices that this process uses.
std::vector<c10::Device> devices_of(const Experiment& experiment,
                                    const MeasureOptions& options) {
  const int64_t partitions = std::max<int64_t>(1, experiment.partitions);
  if (!options.ranks || experiment.partitions == 0) {
    return devices_for(partitions, options.devices);
  }
  const int ranks = options.ranks->size();
  if (partitions != ranks) {
    throw MissingDevices(std::to_string(partitions) + " partitions need " +
                         std::to_string(partitions) +
                         " processes, but there are " + std::to_string(ranks));
  }
  return {
      options.devices[options.ranks->local_rank() % options.devices.size()]};
}

void log_settings(const Outcome& outcome) {
  const Experiment& experiment = outcome.experiment;
  std::string text = experiment.name +
                     " | batch size: " + std::to_string(experiment.batch_size);
  if (experiment.partitions > 0) {
    text += ", chunks: " + std::to_string(experiment.chunks) + ", balance: [" +
            balance_text(experiment.balance) +
            "], checkpoint: " + to_string(experiment.checkpoint);
  }
  text += ", devices: " + outcome.devices;
  if (!outcome.threads.empty()) text += ", threads: " + outcome.threads;
  LOG(INFO) << text;
}

}  // namespace

Outcome measure(const Benchmark& benchmark, const Workload& workload,
                Experiment experiment, const MeasureOptions& options,
                Balancers* balancers) {
  Ranks* const ranks =
      experiment.partitions > 0 ? options.ranks.get() : nullptr;
  const auto devices = devices_of(experiment, options);
  if (options.ranks && !ranks && options.ranks->rank() > 0) return {};
  const MemoryWatch watch(devices);
  torch::manual_seed(options.seed);
  torch::nn::Sequential model = benchmark.model(experiment);
  at::Tensor input = workload.input(experiment.batch_size);
  at::Tensor target = workload.target(experiment.batch_size);
  if (!ranks || ranks->rank() == 0) {
    set_balance(&experiment, model, input, devices.front(), balancers);
  }
  if (ranks) experiment.balance = ranks->of_first(experiment.balance);
  Trainee trainee =
      ranks
          ? make_distributed_trainee(std::move(model), experiment,
                                     benchmark.loss, devices.front(),
                                     ranks->world())
          : make_trainee(std::move(model), experiment, benchmark.loss, devices);
  input = input.to(trainee.devices.front());
  target = target.to(trainee.devices.back());

  Outcome outcome;
  outcome.experiment = std::move(experiment);
  outcome.devices = devices_text(trainee.devices);
  if (ranks) {
    outcome.devices +=
        " of each of " + std::to_string(ranks->size()) + " processes";
  }
  outcome.threads = trainee.threads;
  outcome.samples = benchmark.table_kind == TableKind::kMemory
                        ? outcome.experiment.batch_size
                        : workload.samples_per_epoch;
  log_settings(outcome);

  const auto optimizer = make_optimizer(benchmark.optimizer, trainee.parameters,
                                        benchmark.learning_rate);
  const auto step = [&](int64_t rows) {
    trainee.train(input.narrow(0, 0, rows), target.narrow(0, 0, rows));
    optimizer->step();
    optimizer->zero_grad();
  };
  watch.reset_peaks();
  outcome.durations =
      time_epochs(outcome.experiment.name,
                  {outcome.samples, outcome.experiment.batch_size,
                   options.epochs, options.skip_epochs,
                   /*silent=*/ranks && ranks->rank() > 0},
                  trainee.devices, step);
  outcome.memory =
      watch.read({trainee.parameters, trainee.buffers, state_of(*optimizer)});
  if (ranks) outcome.memory = ranks->gather(outcome.memory);
  return outcome;
}

}  // namespace gpipe::benchmarks
