#include "benchmarks/harness/dry_run.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <glog/logging.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "balancing/partition.h"
#include "benchmarks/harness/devices.h"
#include "gpipe/base/text.h"
#include "gpipe/gpipe.h"
#include "gpipe/libtorch/meta_ledger.h"
#include "gpipe/meta.h"
#include "gpipe/runtime/device/memory_kind.h"

namespace gpipe::benchmarks {

std::vector<int64_t> balance_by_parameters(const torch::nn::Sequential& model,
                                           int64_t partitions) {
  std::vector<double> costs;
  for (const auto& layer : model->children()) {
    double& cost = costs.emplace_back(1);
    for (const auto& parameter : layer->parameters()) {
      cost += static_cast<double>(parameter.nbytes());
    }
  }
  return balancing::balance_cost(costs, partitions);
}

namespace {

// Returns `count` meta devices with an index each, or LibTorch's own meta
// device, without an index, if `count` is 0 (the plain model).
std::vector<c10::Device> devices_for(int64_t count) {
  if (count == 0) return {c10::Device(c10::kMeta)};
  return internal::meta_devices(count);
}

// A training run on meta devices, of the plain model or of a pipeline.
class DryRun {
 public:
  DryRun(const Benchmark& benchmark, const Workload& workload,
         const Experiment& experiment)
      : benchmark_(benchmark),
        workload_(workload),
        experiment_(experiment),
        devices_(devices_for(experiment.partitions)) {
    build();
    label();
    std::map<c10::DeviceIndex, std::vector<at::Tensor>> parts;
    for (const at::Tensor& each : module_->parameters()) {
      if (each.requires_grad()) parts[each.device().index()].push_back(each);
    }
    for (auto& [index, part] : parts) {
      optimizers_.emplace_back(
          c10::Device(c10::kMeta, index),
          make_optimizer(benchmark.optimizer, std::move(part),
                         benchmark.learning_rate));
    }
    make_optimizer_state();
    ledger_.reset_peaks();
  }

  // Runs one training step. The optimizer's state exists already, as in any
  // step but the first.
  void step() {
    const auto [input, target] = mini_batch();
    // New tensors are made on the current meta device. Outside of the pipeline
    // that is the last device.
    const c10::DeviceGuard last(devices_.back());
    const at::Tensor output =
        pipeline_ ? pipeline_->forward(input) : plain_->forward(input);
    benchmark_.loss(output, target).backward();
    update();
  }

  std::vector<DeviceMemory> memory() const {
    LastingTensors lasting{module_->parameters(), module_->buffers(), {}};
    for (const auto& [device, optimizer] : optimizers_) {
      for (at::Tensor& state : state_of(*optimizer)) {
        lasting.optimizer_state.push_back(std::move(state));
      }
    }
    std::vector<DeviceMemory> result;
    for (const c10::Device& device : devices_) {
      const MetaLedger::Device found = ledger_.of(device.index());
      DeviceMemory memory = lasting_on(device, lasting);
      memory.peak = found.peak;
      memory.transient = found.transient_peak;
      memory.boundary = found.kind_peaks[static_cast<std::size_t>(
          internal::MemoryKind::kBoundary)];
      result.push_back(memory);
    }
    return result;
  }

 private:
  // Makes the optimizer's state by one update with zero gradients, since
  // optimizers allocate it in their first step.
  void make_optimizer_state() {
    for (const at::Tensor& each : module_->parameters()) {
      if (!each.requires_grad()) continue;
      const c10::DeviceGuard on(each.device());
      each.mutable_grad() = at::zeros_like(each);
    }
    update();
  }

  void update() {
    const internal::MemoryKindScope kind(internal::MemoryKind::kOptimizerState);
    for (const auto& [device, optimizer] : optimizers_) {
      const c10::DeviceGuard on(device);
      optimizer->step();
      optimizer->zero_grad();
    }
  }

  void build() {
    const MetaGuard meta;
    torch::nn::Sequential model = benchmark_.model(experiment_);
    if (experiment_.partitions == 0) {
      module_ = model.ptr();
      plain_ = std::move(model);
      return;
    }
    pipeline_ = GPipe(std::move(model), GPipeOptions(experiment_.balance)
                                            .devices(devices_)
                                            .chunks(experiment_.chunks)
                                            .checkpoint(experiment_.checkpoint)
                                            .one_at_a_time(true));
    module_ = pipeline_.ptr();
  }

  // Labels the parameters and buffers for the ledger. In the plain model, hooks
  // label the gradients; a pipeline labels its own gradients.
  void label() {
    count_as_parameters(module_->parameters());
    count_as_parameters(module_->buffers());
    if (plain_.is_empty()) return;
    for (const at::Tensor& parameter : module_->parameters()) {
      if (!parameter.requires_grad()) continue;
      parameter.register_hook([](const at::Tensor& grad) {
        internal::label_memory(grad, internal::MemoryKind::kGradient);
      });
    }
  }

  std::pair<at::Tensor, at::Tensor> mini_batch() const {
    const MetaGuard meta;
    return {internal::to_meta_device(workload_.input(experiment_.batch_size),
                                     devices_.front()),
            internal::to_meta_device(workload_.target(experiment_.batch_size),
                                     devices_.back())};
  }

  const Benchmark& benchmark_;
  const Workload& workload_;
  const Experiment& experiment_;
  const std::vector<c10::Device> devices_;
  const MetaLedger ledger_;  // declared before everything that it counts
  torch::nn::Sequential plain_{nullptr};
  GPipe pipeline_{nullptr};
  std::shared_ptr<torch::nn::Module> module_;
  std::vector<std::pair<c10::Device, std::unique_ptr<torch::optim::Optimizer>>>
      optimizers_;
};

std::string text_of(const DeviceMemory& memory) {
  const auto bytes = [](int64_t count) {
    return bytes_text(static_cast<double>(count));
  };
  return "parameters " + bytes(memory.parameters) + ", gradients " +
         bytes(memory.gradients) + ", optimizer " +
         bytes(memory.optimizer_state) + ", buffers " + bytes(memory.buffers) +
         ", activations and the like " + bytes(*memory.transient) +
         " (copied in: " + bytes(memory.boundary) + "), peak of all " +
         bytes(memory.peak);
}

}  // namespace

Outcome dry_run(const Benchmark& benchmark, const Workload& workload,
                const Experiment& experiment) {
  DryRun run(benchmark, workload, experiment);
  run.step();
  Outcome outcome;
  outcome.experiment = experiment;
  outcome.mode = Mode::kDryRun;
  outcome.memory = run.memory();
  for (size_t j = 0; j < outcome.memory.size(); ++j) {
    LOG(INFO) << experiment.name << " | device " << j << " | "
              << text_of(outcome.memory[j]);
  }
  return outcome;
}

}  // namespace gpipe::benchmarks
