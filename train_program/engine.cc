#include "train_program/engine.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <utility>

#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/program/milliseconds.h"
#include "train_program/parse.h"
#include "train_program/planned_cut.h"

namespace gpipe::train_program {
namespace {

GPipe make_local(torch::nn::Sequential model, const Cut& cut,
                 const Options& options) {
  return GPipe(std::move(model),
               GPipeOptions(cut.balance)
                   .devices(parse_devices(options.devices))
                   .chunks(cut.chunks)
                   .checkpoint(cut.checkpoint)
                   .deferred_batch_norm(options.deferred_batch_norm)
                   .stages_per_rank(cut.stages_per_rank)
                   .placement(cut.placement)
                   .threads_per_partition(options.threads));
}

DistributedPipeline make_distributed(torch::nn::Sequential model,
                                     const Cut& cut, const Options& options,
                                     const std::shared_ptr<World>& world) {
  DistributedOptions distributed(cut.balance);
  distributed.data_parallel(options.data_parallel)
      .chunks(cut.chunks)
      .checkpoint(cut.checkpoint)
      .deferred_batch_norm(options.deferred_batch_norm)
      .stages_per_rank(cut.stages_per_rank)
      .placement(cut.placement)
      .transfers(parse_transfers(options.transfers))
      .shard_optimizer(options.shard_optimizer)
      .threads(options.threads);
  const auto devices = parse_devices(options.devices);
  if (!devices.empty()) {
    distributed.device(devices[world->local_rank() % devices.size()]);
  }
  return DistributedPipeline(std::move(model), distributed, world);
}

std::variant<GPipe, DistributedPipeline> make_pipeline(
    torch::nn::Sequential model, const Cut& cut, const Options& options,
    const std::shared_ptr<World>& world) {
  if (!world) return make_local(std::move(model), cut, options);
  return make_distributed(std::move(model), cut, options, world);
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

}  // namespace

RunProcesses::RunProcesses(const Options& options) {
  if (!options.distributed) {
    TORCH_CHECK_VALUE(options.data_parallel == 1,
                      "--data_parallel=", options.data_parallel,
                      " needs several processes, with --distributed");
    TORCH_CHECK_VALUE(options.partitions > 0,
                      "--partitions=", options.partitions,
                      ": must be at least 1");
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

Engine::Engine(RunProcesses processes, torch::nn::Sequential model,
               const Cut& cut, const Options& options)
    : processes_(std::move(processes)),
      pipeline_(
          make_pipeline(std::move(model), cut, options, processes_.world())),
      schedule_(cut.schedule),
      plan_(cut.plan),
      predicted_seconds_(cut.predicted_seconds) {}

int Engine::replica() const {
  const auto* several = std::get_if<DistributedPipeline>(&pipeline_);
  return several ? (*several)->layout().replica : 0;
}

int Engine::replicas() const {
  const auto* several = std::get_if<DistributedPipeline>(&pipeline_);
  return several ? (*several)->layout().replicas : 1;
}

int64_t Engine::microbatches() const { return num_microbatches(schedule_); }

bool Engine::takes_samples() const {
  const auto* several = std::get_if<DistributedPipeline>(&pipeline_);
  return !several || (*several)->layout().has_first() ||
         (*several)->layout().has_last();
}

PipelineModule& Engine::module() {
  return std::visit([](auto& each) -> PipelineModule& { return *each; },
                    pipeline_);
}

StepResult Engine::train(const StepData& data, const LossOf& loss,
                         const TrainOptions& options) {
  if (!data.split) {
    const Sample& whole = data.parts.front();
    return module().train_step(on_device(whole.input), whole.target, loss,
                               schedule_, options);
  }
  Microbatches<at::Tensor> input, target;
  for (const Sample& part : data.parts) {
    input.parts.push_back(on_device(part.input));
    target.parts.push_back(part.target);
  }
  return module().train_step(input, target, loss, schedule_, options);
}

std::optional<at::Tensor> Engine::forward(const at::Tensor& input) {
  const c10::AutoGradMode no_graph(false);
  std::optional<at::Tensor> output = std::visit(
      [&](auto& each) -> std::optional<at::Tensor> {
        return each->forward(on_device(input));
      },
      pipeline_);
  if (output) *output = output->cpu();
  return output;
}

at::Tensor Engine::on_device(const at::Tensor& input) {
  return input.defined() ? input.to(module().device()) : input;
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
      [&](int64_t rows) { return parts.input(rows).to(first_device(devices)); },
      parts.balance_before,
      parts.precision,
      [&](const auto& find) {
        const std::string found = processes.rank() == 0 ? find() : "";
        return processes.all_gather(found).front();
      }};
  const Cut cut = options.plan.empty() ? make_cut(options, sources)
                                       : make_planned_cut(options, sources);
  return std::make_unique<Engine>(processes, std::move(parts.model), cut,
                                  options);
}

}  // namespace gpipe::train_program
