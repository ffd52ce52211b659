#include "train_program/process_engine.h"

#include <c10/util/Exception.h>

#include <limits>
#include <utility>

#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "gpipe/program/milliseconds.h"
#include "train_program/parse.h"

namespace gpipe::train_program {
namespace {

class ProcessEngine : public Engine {
 public:
  ProcessEngine(std::shared_ptr<World> world, DistributedPipeline pipeline,
                Schedule schedule)
      : world_(std::move(world)),
        pipeline_(std::move(pipeline)),
        schedule_(std::move(schedule)) {}

  int rank() const override { return world_->rank(); }
  int ranks() const override { return world_->size(); }
  int replica() const override { return pipeline_->layout().replica; }
  int replicas() const override { return pipeline_->layout().replicas; }
  bool takes_samples() const override {
    return pipeline_->layout().has_first() || pipeline_->layout().has_last();
  }

  torch::nn::Module& module() override { return *pipeline_; }
  const std::vector<int64_t>& balance() const override {
    return pipeline_->balance();
  }
  c10::Device device() const override { return pipeline_->device(); }

  StepResult train(const Sample& sample, const LossOf& loss,
                   const TrainOptions& options) override {
    return pipeline_->train_step(
        here(sample.input), sample.target,
        [&loss](const at::Tensor& output, const at::Tensor& target) {
          return loss(output, target);
        },
        schedule_, options);
  }

  std::optional<at::Tensor> forward(const at::Tensor& input) override {
    auto output = pipeline_->forward(here(input));
    if (output) *output = output->cpu();
    return output;
  }

  std::optional<Failure> last_failure() const override {
    return pipeline_->last_failure();
  }

  double clip(double max_norm) override {
    return pipeline_->clip_grad_norm_(max_norm);
  }

  bool any(bool value) override { return pipeline_->any(value); }

  std::vector<std::string> all_gather(const std::string& mine) override {
    return gpipe::all_gather(*world_, mine, "training");
  }

 private:
  at::Tensor here(const at::Tensor& input) const {
    return input.defined() ? input.to(device()) : input;
  }

  std::shared_ptr<World> world_;
  DistributedPipeline pipeline_;
  const Schedule schedule_;
};

class ProcessEngineMaker : public EngineMaker {
 public:
  explicit ProcessEngineMaker(const Options& options)
      : world_(connect(options)) {}

  int rank() const override { return world_->rank(); }
  int ranks() const override { return world_->size(); }
  std::vector<std::string> all_gather(const std::string& mine) override {
    return gpipe::all_gather(*world_, mine, "before training");
  }

  std::unique_ptr<Engine> make_engine(const Options& options,
                                      EngineParts parts) override {
    const int64_t copies = options.data_parallel;
    TORCH_CHECK_VALUE(copies > 0 && ranks() % copies == 0, ranks(),
                      " processes cannot be divided into --data_parallel=",
                      copies, " replicas of the pipeline");
    TORCH_CHECK_VALUE(options.batch % copies == 0, "--batch=", options.batch,
                      " cannot be divided among --data_parallel=", copies,
                      " replicas");
    const auto devices = parse_devices(options.devices);
    const Cut cut = make_cut(
        options, {parts.model, ranks() / copies, options.batch / copies,
                  [&](int64_t rows) {
                    return parts.input(rows).to(first_device(devices));
                  },
                  parts.balance_before, parts.precision,
                  [&](const auto& find) {
                    return all_gather(rank() == 0 ? find() : "").front();
                  }});
    DistributedOptions distributed(cut.balance);
    distributed.data_parallel(copies)
        .chunks(options.chunks)
        .checkpoint(parse_checkpoint(options.checkpoint))
        .deferred_batch_norm(options.deferred_batch_norm)
        .stages_per_rank(cut.stages_per_rank)
        .placement(cut.placement)
        .transfers(parse_transfers(options.transfers))
        .threads(options.threads);
    if (!devices.empty()) {
      distributed.device(devices[world_->local_rank() % devices.size()]);
    }
    DistributedPipeline pipeline(std::move(parts.model), distributed, world_);
    return std::make_unique<ProcessEngine>(world_, std::move(pipeline),
                                           cut.schedule);
  }

 private:
  static std::shared_ptr<World> connect(const Options& options) {
    auto from_environment = WorldOptions::from_environment();
    from_environment.own_address = options.own_address;
    from_environment.timeout = milliseconds_of(options.timeout);
    from_environment.heartbeat_timeout =
        milliseconds_of(options.heartbeat_timeout);
    return World::connect(from_environment);
  }

  std::shared_ptr<World> world_;
};

}  // namespace

std::unique_ptr<EngineMaker> connect_processes(const Options& options) {
  return std::make_unique<ProcessEngineMaker>(options);
}

}  // namespace gpipe::train_program
