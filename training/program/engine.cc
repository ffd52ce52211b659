#include "training/program/engine.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "gpipe/base/devices.h"
#include "gpipe/base/program.h"
#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/transfers.h"
#include "training/program/model_source.h"

namespace gpipe::train_program {
namespace {

// Returns the options that a GPipe and a DistributedPipeline share.
template <typename PipelineOptions>
PipelineOptions pipeline_options(const Cut& cut, const Options& options) {
  return PipelineOptions(cut.balance)
      .chunks(cut.chunks)
      .checkpoint(cut.checkpoint)
      .deferred_batch_norm(options.deferred_batch_norm)
      .stages_per_rank(cut.stages_per_rank)
      .placement(cut.placement);
}

GPipe make_local(torch::nn::Sequential model, const Cut& cut,
                 const Options& options) {
  return GPipe(std::move(model), pipeline_options<GPipeOptions>(cut, options)
                                     .devices(parse_devices(options.devices))
                                     .threads_per_partition(options.threads));
}

DistributedPipeline make_distributed(torch::nn::Sequential model,
                                     const LayerBuilder& make, const Cut& cut,
                                     const Options& options,
                                     const std::shared_ptr<World>& world) {
  auto distributed = pipeline_options<DistributedOptions>(cut, options);
  distributed.data_parallel(options.data_parallel)
      .transfers(parse_transfers(options.transfers))
      .shard_optimizer(options.shard_optimizer)
      .collective_sums(options.collective_sums)
      .threads(options.threads);
  const auto devices = parse_devices(options.devices);
  if (!devices.empty()) {
    distributed.device(devices[world->local_rank() % devices.size()]);
  }
  if (make) return DistributedPipeline(make, distributed, world);
  return DistributedPipeline(std::move(model), distributed, world);
}

std::variant<GPipe, DistributedPipeline> make_pipeline(
    torch::nn::Sequential model, const LayerBuilder& make, const Cut& cut,
    const Options& options, const std::shared_ptr<World>& world) {
  if (!world) return make_local(std::move(model), cut, options);
  return make_distributed(std::move(model), make, cut, options, world);
}

PipelineModule& module_of(std::variant<GPipe, DistributedPipeline>& pipeline) {
  return std::visit([](auto& each) -> PipelineModule& { return *each; },
                    pipeline);
}

// Throws c10::ValueError if the options do not fit the number of processes.
void check_replicas(const Options& options, int processes) {
  const int64_t replicas = options.data_parallel;
  TORCH_CHECK_VALUE(replicas > 0 && processes % replicas == 0, processes,
                    " processes cannot be divided into --data_parallel=",
                    replicas, " replicas of the pipeline");
  TORCH_CHECK_VALUE(options.batch % replicas == 0, "--batch=", options.batch,
                    " cannot be divided among --data_parallel=", replicas,
                    " replicas");
}

// Returns the devices of the ranks of a pipeline of this process.
std::vector<RankDevice> local_devices(const std::vector<c10::Device>& devices,
                                      int64_t ranks) {
  const auto count = static_cast<int64_t>(devices.size());
  std::vector<RankDevice> used;  // the first ranks' devices
  for (int64_t k = 0; k < std::min(count, ranks); ++k) {
    RankDevice& each = used.emplace_back(rank_device(devices[k]));
    int64_t sharers = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      if (devices[r % count] == devices[k]) ++sharers;
    }
    each.memory_bytes /= static_cast<double>(sharers);
  }
  std::vector<RankDevice> result;
  for (int64_t r = 0; r < ranks; ++r) result.push_back(used[r % count]);
  return result;
}

// Returns the devices of the ranks of a pipeline, the smallest ones of all
// replicas. With several processes, all call this.
std::vector<RankDevice> devices_of_ranks(const RunProcesses& processes,
                                         const Options& options) {
  auto devices = parse_devices(options.devices);
  if (devices.empty()) devices = all_devices();
  const auto& world = processes.world();
  if (!world) return local_devices(devices, options.partitions);
  const auto own = devices[world->local_rank() % devices.size()];
  const std::vector<std::string> all =
      processes.all_gather(to_text(rank_device(own)));
  const std::size_t ranks = all.size() / options.data_parallel;
  std::vector<RankDevice> result;
  for (std::size_t k = 0; k < all.size(); ++k) {
    const RankDevice device = rank_device_of(all[k]);
    if (k < ranks) {
      result.push_back(device);
      continue;
    }
    RankDevice& smallest = result[k % ranks];
    smallest.is_accelerator = smallest.is_accelerator && device.is_accelerator;
    smallest.memory_bytes =
        std::min(smallest.memory_bytes, device.memory_bytes);
  }
  return result;
}

}  // namespace

RunProcesses::RunProcesses(const Options& options) {
  if (!options.distributed) {
    TORCH_CHECK_VALUE(options.data_parallel == 1,
                      "--data_parallel=", options.data_parallel,
                      " needs several processes, with --distributed");
    check_at_least("partitions", options.partitions, 1);
    return;
  }
  auto world_options = WorldOptions::from_environment();
  world_options.own_address = options.own_address;
  world_options.timeout = milliseconds_of(options.timeout);
  world_options.heartbeat_timeout = milliseconds_of(options.heartbeat_timeout);
  world_ = World::connect(world_options);
}

std::vector<std::string> RunProcesses::all_gather(
    const std::string& mine, const std::string& action) const {
  if (!world_) return {mine};
  return gpipe::all_gather(*world_, mine, action);
}

std::vector<std::string> RunProcesses::gather(const std::string& mine,
                                              const std::string& action) const {
  if (!world_) return {mine};
  return gpipe::gather(*world_, mine, action);
}

RunShard RunProcesses::shard(const std::string& action) const {
  RunShard shard;
  shard.index = rank();
  shard.count = ranks();
  shard.all_gather = [*this, action](const std::string& mine) {
    return all_gather(mine, action);
  };
  return shard;
}

Engine::Engine(RunProcesses processes, torch::nn::Sequential model,
               const LayerBuilder& make, const Cut& cut, const Options& options)
    : processes_(std::move(processes)),
      pipeline_(make_pipeline(std::move(model), make, cut, options,
                              processes_.world())),
      schedule_(cut.schedule),
      plan_(cut.plan),
      predicted_seconds_(cut.predicted_seconds),
      predicted_bytes_(cut.predicted_bytes) {
  if (!options.trace.empty() && processes_.world()) {
    clock_.emplace(processes_.world());
  }
}

int Engine::replica() const {
  const auto* several = std::get_if<DistributedPipeline>(&pipeline_);
  return several ? (*several)->layout().replica : 0;
}

int Engine::replicas() const {
  const auto* several = std::get_if<DistributedPipeline>(&pipeline_);
  return several ? (*several)->layout().replicas : 1;
}

int64_t Engine::microbatches() const { return num_microbatches(schedule_); }

std::vector<PlannedMemory> Engine::planned_memory() const {
  std::vector<PlannedMemory> result;
  const auto add = [&](std::size_t rank, const c10::Device& device) {
    auto place = std::find_if(
        result.begin(), result.end(),
        [&](const PlannedMemory& each) { return each.device == device; });
    if (place == result.end()) place = result.insert(place, {device, {}});
    place->ranks.push_back(static_cast<int64_t>(rank));
    place->bytes += predicted_bytes_[rank];
  };
  if (const auto* local = std::get_if<GPipe>(&pipeline_)) {
    const auto& devices = (*local)->devices();
    for (std::size_t r = 0; r < predicted_bytes_.size(); ++r) {
      add(r, devices[r]);
    }
  } else if (!predicted_bytes_.empty()) {
    const auto& own = std::get<DistributedPipeline>(pipeline_);
    add(static_cast<std::size_t>(own->layout().rank), own->device());
  }
  return result;
}

bool Engine::takes_samples() const {
  const auto* several = std::get_if<DistributedPipeline>(&pipeline_);
  return !several || (*several)->layout().has_first() ||
         (*several)->layout().has_last();
}

PipelineModule& Engine::module() { return module_of(pipeline_); }

void Engine::evaluate_with(torch::nn::Sequential model,
                           const LayerBuilder& make, Cut cut, Options options) {
  options.deferred_batch_norm = options.shard_optimizer = false;
  evaluated_.emplace(make_pipeline(std::move(model), make, std::move(cut),
                                   options, processes_.world()));
  module_of(*evaluated_).eval();
  share_tensors(module(), module_of(*evaluated_));  // frees its own
}

StepResult Engine::train(const StepData& data, const LossOf& loss,
                         const TrainOptions& options) {
  if (!data.split) {
    const Sample whole = on_device(data.parts.front());
    return whole.with_input([&](const auto& input) {
      return module().train_step(input, whole.target, loss, schedule_, options);
    });
  }
  Microbatches<at::Tensor> input, target;
  for (const Sample& part : data.parts) {
    input.parts.push_back(on_device(part).input);
    target.parts.push_back(part.target);
  }
  return module().train_step(input, target, loss, schedule_, options);
}

WholeTimeline Engine::whole_timeline(const Timeline& own) {
  if (clock_) return clock_->gather(own);
  return {{NamedTimeline{"pipeline", own}}, 0};
}

Engine::Pipeline& Engine::evaluating() {
  if (!evaluated_) return pipeline_;
  // Again, because the optimizer may have replaced tensors.
  share_tensors(module(), module_of(*evaluated_));
  return *evaluated_;
}

std::optional<std::vector<at::Tensor>> Engine::forward(
    const std::vector<Sample>& parts) {
  const c10::AutoGradMode no_graph(false);
  Pipeline& pipeline = evaluating();
  auto outputs = parts.front().with_input([&](const auto& first) {
    using Input = std::decay_t<decltype(first)>;
    Microbatches<Input> input;
    for (const Sample& each : parts) {
      on_device(each).with_input([&](const auto& own) {
        if constexpr (std::is_same_v<std::decay_t<decltype(own)>, Input>) {
          input.parts.push_back(own);
        }
      });
    }
    return std::visit(
        [&](auto& each) -> std::optional<Microbatches<at::Tensor>> {
          return each->forward(input);
        },
        pipeline);
  });
  if (!outputs) return std::nullopt;
  for (at::Tensor& each : outputs->parts) each = each.cpu();
  return std::move(outputs->parts);
}

std::optional<at::Tensor> Engine::forward(const Sample& sample) {
  const c10::AutoGradMode no_graph(false);
  Pipeline& pipeline = evaluating();
  std::optional<at::Tensor> output =
      on_device(sample).with_input([&](const auto& input) {
        return std::visit(
            [&](auto& each) -> std::optional<at::Tensor> {
              return each->forward(input);
            },
            pipeline);
      });
  if (output) *output = output->cpu();
  return output;
}

Sample Engine::on_device(Sample sample) {
  const c10::Device device = module().device();
  // Pinned memory (see pin()) is read later, and LibTorch keeps it until then.
  // A copy from other memory has read it when it returns.
  return with_inputs_changed(std::move(sample), [&](const at::Tensor& each) {
    return each.to(device, /*non_blocking=*/!device.is_cpu());
  });
}

std::unique_ptr<Engine> make_engine(const RunProcesses& processes,
                                    const Options& options, EngineParts parts) {
  const bool alone = !processes.world();
  if (!alone) check_replicas(options, processes.ranks());
  const int64_t replicas = options.data_parallel;
  const auto devices = parse_devices(options.devices);
  const CutSources sources = {
      parts.model,
      alone ? options.partitions : processes.ranks() / replicas,
      options.batch / replicas,
      [&](int64_t rows) {
        return with_inputs_changed(parts.input(rows),
                                   [&](const at::Tensor& each) {
                                     return each.to(first_device(devices));
                                   });
      },
      parts.balance_before,
      parts.precision,
      options.offload == "auto" ? devices_of_ranks(processes, options)
                                : std::vector<RankDevice>(),
      parts.make,
      [&](const auto& find) {
        const std::string found = processes.rank() == 0 ? find() : "";
        return processes.all_gather(found).front();
      }};
  const Cut cut = options.plan.empty() ? make_cut(options, sources)
                                       : make_planned_cut(options, sources);
  Cut eval_cut = cut;
  if (parts.eval_model) {
    eval_cut.balance = eval_balance(parts.model, cut.balance, parts.eval_model);
  }
  auto engine = std::make_unique<Engine>(processes, std::move(parts.model),
                                         parts.make, cut, options);
  if (parts.eval_model) {
    engine->evaluate_with(std::move(parts.eval_model), parts.make_eval,
                          std::move(eval_cut), options);
  }
  return engine;
}

}  // namespace gpipe::train_program
