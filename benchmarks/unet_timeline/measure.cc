#include "benchmarks/unet_timeline/measure.h"

#include <ATen/core/Tensor.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "benchmarks/harness/copy_streams.h"
#include "benchmarks/harness/costs/balancer.h"
#include "benchmarks/harness/device_memory.h"
#include "benchmarks/harness/experiment/devices.h"
#include "benchmarks/harness/experiment/program.h"
#include "benchmarks/harness/experiment/progress.h"
#include "benchmarks/harness/experiment/throughput.h"
#include "benchmarks/unet_timeline/ablation.h"
#include "benchmarks/unet_timeline/relay.h"
#include "benchmarks/unet_timeline/rows.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/schedule/microbatches.h"

namespace gpipe::benchmarks {
namespace {

bool has_copies(const std::vector<c10::Device>& devices) {
  return std::any_of(
      devices.begin(), devices.end(),
      [&](const c10::Device& device) { return device != devices.front(); });
}

Schedule schedule_of(const Experiment& row, uint64_t seed) {
  const int64_t count = num_microbatches(row.batch_size, row.chunks);
  return ablated_schedule(
      static_cast<int>(row.partitions), static_cast<int>(count),
      static_cast<int>(checkpointed_microbatches(row.checkpoint, count)),
      mechanisms_of(row), seed);
}

// The pipeline for the rows with direct skips, or for the rows without them.
class Trial {
 public:
  Trial(const Benchmark& benchmark, const RunOptions& options,
        const Experiment& row)
      : loss_(benchmark.loss),
        devices_(devices_for(row.partitions, options.settings.devices)) {
    torch::manual_seed(options.settings.seed);
    Relayed made{benchmark.model(row), row.balance};
    if (!mechanisms_of(row).direct_skips) {
      made = relay_skips(made.model, made.balance);
    }
    // The schedules contain the recomputes.
    pipeline_ = GPipe(
        made.model,
        GPipeOptions(made.balance)
            .devices(devices_)
            .checkpoint(Checkpoint::kNever)
            .threads_per_partition(threads_per_partition(row.partitions)));
    const Workload& workload = options.workload(benchmark);
    input_ = workload.input(row.batch_size).to(devices_.front());
    target_ = workload.target(row.batch_size).to(devices_.back());
  }

  // Runs a step and adds its duration and, if `timeline` is true, its timeline
  // to `row`.
  void step(const Schedule& schedule, bool timeline, Outcome* row) {
    for (at::Tensor& parameter : pipeline_->parameters()) {
      parameter.mutable_grad() = at::Tensor();
    }
    const Stopwatch watch(devices_);
    // Reads no memory: if ranks share a device, its bytes are not those of one
    // rank.
    StepResult result = pipeline_->train_step(
        input_, target_, loss_, schedule,
        TrainOptions().timeline(timeline).memory(MemoryReader()));
    row->durations.push_back(watch.elapsed());
    row->timeline = std::move(result.timeline);
  }

 private:
  std::function<at::Tensor(at::Tensor, at::Tensor)> loss_;
  std::vector<c10::Device> devices_;
  GPipe pipeline_{nullptr};
  at::Tensor input_, target_;
};

}  // namespace

void plan_devices(const std::vector<c10::Device>& devices,
                  std::vector<Outcome>* rows) {
  for (Outcome& row : *rows) {
    const int64_t partitions = row.experiment.partitions;
    std::vector<c10::Device> own;
    try {
      own = devices_for(partitions, devices);
    } catch (const MissingDevices& missing) {
      row.error = missing.what();
      row.left_out = true;
      continue;
    }
    row.devices = devices_text(own);
    row.threads = threads_text(partitions, own.front());
    if (!mechanisms_of(row.experiment).copy_streams && !has_copies(own)) {
      row.error = "left out: nothing is copied, since all partitions are on " +
                  own.front().str();
      row.left_out = true;
    }
  }
}

void measure_rows(const Benchmark& benchmark, const RunOptions& options,
                  bool timelines, std::vector<Outcome>* rows) {
  std::map<bool, Trial> trials;  // by Mechanisms::direct_skips
  const auto step = [&](Outcome* row) {
    const Experiment& experiment = row->experiment;
    const Mechanisms on = mechanisms_of(experiment);
    const auto trial =
        trials.try_emplace(on.direct_skips, benchmark, options, experiment);
    std::optional<WithoutCopyStreams> without;
    if (!on.copy_streams) without.emplace();
    trial.first->second.step(schedule_of(experiment, options.settings.seed),
                             timelines, row);
  };

  Progress progress(benchmark.program.name, options.epochs);
  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    for (std::size_t k = 0; k < rows->size(); ++k) {
      Outcome& row = (*rows)[k];
      if (!row.error.empty()) continue;
      row.samples = row.experiment.batch_size;
      try {
        step(&row);
      } catch (const std::exception& error) {
        row.error = describe(error);
        row.durations.clear();
        row.timeline.reset();
        continue;
      }
      progress.update(
          epoch + 1,
          static_cast<double>(k + 1) / static_cast<double>(rows->size()),
          static_cast<double>(row.samples) / row.durations.back().wall_seconds);
      if (epoch < options.skip_epochs) row.durations.clear();
    }
  }
}

}  // namespace gpipe::benchmarks
