#include "benchmarks/harness/measure.h"

#include <ATen/Parallel.h>
#include <absl/strings/str_join.h>
#include <glog/logging.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <optional>
#include <thread>

#include "balancing/balancing.h"  // with profile_times and balance_cost
#include "balancing/profile/threads_scope.h"
#include "benchmarks/harness/devices.h"
#include "benchmarks/harness/outcome_table.h"
#include "benchmarks/harness/timing.h"
#include "gpipe/base/text.h"
#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"

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

namespace {

void set_balance(Experiment* experiment, const torch::nn::Sequential& model,
                 const at::Tensor& input, const c10::Device& device,
                 Balancers* balancers) {
  if (experiment->partitions == 0 || !experiment->balance.empty()) return;
  if (experiment->partitions == 1) {
    experiment->balance = {static_cast<int64_t>(model->size())};
    return;
  }
  const int64_t rows =
      rows_per_microbatch(experiment->batch_size, experiment->chunks);
  experiment->balance = (*balancers)[experiment->size].balance(
      experiment->partitions, model, input.narrow(0, 0, rows).to(device),
      threads_per_partition(experiment->partitions));
}

// Returns the devices that this process uses.
std::vector<c10::Device> devices_of(const Experiment& experiment,
                                    const RunOptions& options) {
  const int64_t partitions = std::max<int64_t>(1, experiment.partitions);
  if (!options.world || experiment.partitions == 0) {
    return devices_for(partitions, options.settings.devices);
  }
  const int ranks = options.world->size();
  if (partitions != ranks) {
    throw MissingDevices(std::to_string(partitions) + " partitions need " +
                         std::to_string(partitions) +
                         " processes, but there are " + std::to_string(ranks));
  }
  return {options.settings.devices[options.world->local_rank() %
                                   options.settings.devices.size()]};
}

using LossOf = std::function<at::Tensor(at::Tensor, at::Tensor)>;

// A model with a function that runs forward, loss and backward of a mini-batch
// of any number of rows.
struct Trainee {
  std::shared_ptr<torch::nn::Module> module;
  std::function<void(at::Tensor input, at::Tensor target)> train;
};

template <typename Holder>
Trainee trainee_of(Holder module, const LossOf& loss) {
  return {module.ptr(),
          [module, loss](const at::Tensor& input, at::Tensor target) mutable {
            loss(module->forward(input), std::move(target)).backward();
          }};
}

// Returns the plain model or its pipeline or, with a `world`, the part of the
// pipeline on this rank.
Trainee make_trainee(torch::nn::Sequential model, const Experiment& experiment,
                     const LossOf& loss,
                     const std::vector<c10::Device>& devices,
                     const std::shared_ptr<World>& world) {
  if (experiment.partitions == 0) {
    model->to(devices.front());
    return trainee_of(std::move(model), loss);
  }
  const int64_t threads = threads_per_partition(experiment.partitions);
  if (!world) {
    return trainee_of(
        GPipe(std::move(model), GPipeOptions(experiment.balance)
                                    .devices(devices)
                                    .chunks(experiment.chunks)
                                    .checkpoint(experiment.checkpoint)
                                    .threads_per_partition(threads)),
        loss);
  }
  DistributedPipeline pipeline(std::move(model),
                               DistributedOptions(experiment.balance)
                                   .device(devices.front())
                                   .checkpoint(experiment.checkpoint)
                                   .threads_per_partition(threads),
                               world);
  const auto train = [pipeline, loss, experiment](at::Tensor input,
                                                  at::Tensor target) mutable {
    const int64_t count = num_microbatches(input.size(0), experiment.chunks);
    pipeline->train_step(std::move(input), std::move(target), loss,
                         fill_drain(static_cast<int>(experiment.partitions),
                                    static_cast<int>(count)));
  };
  return {pipeline.ptr(), train};
}

// Returns the entries of all ranks, in the order of the ranks.
std::vector<DeviceMemory> gather(World& world,
                                 const std::vector<DeviceMemory>& own) {
  std::vector<int64_t> numbers;
  for (const DeviceMemory& each : own) {
    numbers.insert(numbers.end(),
                   {each.parameters, each.gradients, each.optimizer_state,
                    each.buffers, each.peak, each.boundary,
                    each.transient.value_or(-1), each.reserved.value_or(-1)});
  }
  const auto known = [](int64_t value) {
    return value < 0 ? std::nullopt : std::make_optional(value);
  };
  std::vector<DeviceMemory> all;
  for (const std::string& theirs :
       all_gather(world, absl::StrJoin(numbers, ","), kMeasuring)) {
    const std::vector<int64_t> n = parse_numbers("", theirs);
    for (std::size_t k = 0; k < n.size(); k += 8) {
      all.push_back({n[k], n[k + 1], n[k + 2], n[k + 3], n[k + 4], n[k + 5],
                     known(n[k + 6]), known(n[k + 7])});
    }
  }
  return all;
}

// Returns a tensor with as many rows that takes the memory of one number.
at::Tensor only_rows_of(const at::Tensor& batch) {
  return at::empty({1}, batch.options()).expand({batch.size(0)});
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

namespace {

// Returns how many threads a row has with ranks in processes. A launcher gives
// each process its share of the cores (OMP_NUM_THREADS): the plain model has
// those of all, as the other ranks wait.
int64_t threads_of_all(const World& world, bool is_plain) {
  const int64_t own = at::get_num_threads();
  if (std::getenv("OMP_NUM_THREADS") == nullptr) return own;
  const int64_t all = own * world.size();
  const int64_t cores = std::thread::hardware_concurrency();
  return is_plain ? std::min(all, std::max(own, cores)) : all;
}

}  // namespace

Outcome measure(const Benchmark& benchmark, const Workload& workload,
                Experiment experiment, const RunOptions& options,
                Balancers* balancers) {
  const auto world = experiment.partitions > 0 ? options.world : nullptr;
  const auto devices = devices_of(experiment, options);
  if (options.world && !world && options.world->rank() > 0) return {};
  std::optional<balancing::ThreadsScope> threads;
  if (options.world && devices.front().is_cpu()) {
    threads.emplace(threads_of_all(*options.world, /*is_plain=*/!world));
  }
  const MemoryWatch watch(devices);
  torch::manual_seed(options.settings.seed);
  torch::nn::Sequential model = benchmark.model(experiment);
  at::Tensor input = workload.input(experiment.batch_size);
  at::Tensor target = workload.target(experiment.batch_size);
  if (!world || world->rank() == 0) {
    set_balance(&experiment, model, input, devices.front(), balancers);
  }
  if (world) {
    experiment.balance = parse_numbers(
        "",
        all_gather(*world, absl::StrJoin(experiment.balance, ","), kMeasuring)
            .front());
  }
  const Trainee trainee = make_trainee(std::move(model), experiment,
                                       benchmark.loss, devices, world);
  const auto parameters = trainee.module->parameters();
  // Of a mini-batch that it does not read, a rank needs the number of rows.
  const bool has_first = !world || world->rank() == 0;
  const bool has_last = !world || world->rank() + 1 == world->size();
  input = has_first ? input.to(devices.front()) : only_rows_of(input);
  target = has_last ? target.to(devices.back()) : only_rows_of(target);

  Outcome outcome;
  outcome.experiment = std::move(experiment);
  outcome.devices = devices_text(devices);
  if (world) {
    outcome.devices =
        absl::StrJoin(all_gather(*world, outcome.devices, kMeasuring), ", ") +
        " in " + std::to_string(world->size()) + " processes";
  }
  const int64_t partitions = outcome.experiment.partitions;
  outcome.threads = threads_text(partitions, devices.front());
  outcome.samples = benchmark.table_kind == TableKind::kMemory
                        ? outcome.experiment.batch_size
                        : options.samples;
  log_settings(outcome);

  const auto optimizer =
      make_optimizer(benchmark.optimizer, parameters, benchmark.learning_rate);
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
                   /*silent=*/world && world->rank() > 0},
                  devices, step);
  outcome.memory =
      watch.read({parameters, trainee.module->buffers(), state_of(*optimizer)});
  if (world) outcome.memory = gather(*world, outcome.memory);
  return outcome;
}

}  // namespace gpipe::benchmarks
