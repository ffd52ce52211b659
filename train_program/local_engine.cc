#include "train_program/local_engine.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <utility>

#include "gpipe/gpipe.h"
#include "train_program/parse.h"

namespace gpipe::train_program {
namespace {

class LocalEngine : public Engine {
 public:
  LocalEngine(GPipe pipeline, Schedule schedule)
      : pipeline_(std::move(pipeline)), schedule_(std::move(schedule)) {}

  torch::nn::Module& module() override { return *pipeline_; }
  const std::vector<int64_t>& balance() const override {
    return pipeline_->balance();
  }
  c10::Device device() const override { return pipeline_->devices().front(); }

  StepResult train(const Sample& sample, const LossOf& loss,
                   const TrainOptions& options) override {
    return pipeline_->train_step(
        sample.input.to(device()), sample.target,
        [&loss](const at::Tensor& output, const at::Tensor& target) {
          return loss(output, target);
        },
        schedule_, options);
  }

  std::optional<at::Tensor> forward(const at::Tensor& input) override {
    const c10::AutoGradMode no_graph(false);
    return pipeline_->forward(input.to(device())).cpu();
  }

  std::optional<Failure> last_failure() const override {
    return pipeline_->last_failure();
  }

  double clip(double max_norm) override {
    return pipeline_->clip_grad_norm_(max_norm);
  }

 private:
  GPipe pipeline_;
  const Schedule schedule_;
};

class LocalEngineMaker : public EngineMaker {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 1; }
  std::vector<std::string> all_gather(const std::string& mine) override {
    return {mine};
  }

  std::unique_ptr<Engine> make_engine(const Options& options,
                                      EngineParts parts) override {
    const auto devices = parse_devices(options.devices);
    const Cut cut =
        make_cut(options, {parts.model, options.partitions, options.batch,
                           [&](int64_t rows) {
                             return parts.input(rows).to(first_device(devices));
                           },
                           parts.balance_before, parts.precision,
                           [](const auto& find) { return find(); }});
    GPipe pipeline(std::move(parts.model),
                   GPipeOptions(cut.balance)
                       .devices(devices)
                       .chunks(options.chunks)
                       .checkpoint(parse_checkpoint(options.checkpoint))
                       .deferred_batch_norm(options.deferred_batch_norm)
                       .stages_per_rank(cut.stages_per_rank)
                       .placement(cut.placement)
                       .threads_per_partition(options.threads));
    return std::make_unique<LocalEngine>(std::move(pipeline), cut.schedule);
  }
};

}  // namespace

std::unique_ptr<EngineMaker> use_one_process(const Options& options) {
  TORCH_CHECK_VALUE(options.data_parallel == 1,
                    "--data_parallel=", options.data_parallel,
                    " needs several processes, with --distributed");
  TORCH_CHECK_VALUE(options.partitions > 0, "--partitions=", options.partitions,
                    ": must be at least 1");
  return std::make_unique<LocalEngineMaker>();
}

}  // namespace gpipe::train_program
