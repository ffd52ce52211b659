#include "examples/either_pipeline.h"

#include <gflags/gflags.h>
#include <torch/utils.h>

#include <iostream>
#include <sstream>
#include <utility>

#include "gpipe/distributed/gather.h"
#include "gpipe/program/milliseconds.h"
#include "gpipe/schedule.h"

DEFINE_bool(distributed, false,
            "Run each partition in a process of its own. Start as many "
            "processes as partitions, with //tools:launch, torchrun, srun or "
            "mpirun, each with the same flags. See docs/distributed.md.");
DEFINE_int64(partitions, 2,
             "Number of partitions of the pipeline. With --distributed, it is "
             "the number of processes.");
DEFINE_int64(chunks, 4, "Number of micro-batches per mini-batch.");
DEFINE_double(timeout, 60,
              "With --distributed: seconds to wait for another process, and "
              "for any message.");

namespace examples {
namespace {

std::shared_ptr<gpipe::World> meet() {
  if (!FLAGS_distributed) return nullptr;
  TORCH_CHECK_VALUE(FLAGS_timeout > 0, "--timeout=", FLAGS_timeout,
                    ": expected seconds, above 0");
  auto options = gpipe::WorldOptions::from_environment();
  options.timeout = gpipe::milliseconds_of(FLAGS_timeout);
  return gpipe::World::connect(options);
}

// Calls `find` on rank 0 and returns its result on all ranks.
std::vector<int64_t> of_first(
    gpipe::World& world, const std::function<std::vector<int64_t>()>& find) {
  std::ostringstream mine;
  if (world.rank() == 0) {
    for (const int64_t each : find()) mine << each << " ";
  }
  std::istringstream all(gpipe::all_gather(world, mine.str()).front());
  std::vector<int64_t> numbers;
  for (int64_t each; all >> each;) numbers.push_back(each);
  return numbers;
}

}  // namespace

EitherPipeline::EitherPipeline(
    torch::nn::Sequential model,
    const std::function<std::vector<int64_t>(int64_t partitions)>& balance)
    : world_(meet()) {
  TORCH_CHECK_VALUE(FLAGS_chunks > 0, "--chunks needs to be above 0");
  std::vector<int64_t> layers;
  if (!world_) {
    layers = balance(FLAGS_partitions);
    pipeline_ = gpipe::GPipe(std::move(model),
                             gpipe::GPipeOptions(layers).chunks(FLAGS_chunks));
  } else {
    layers = of_first(*world_, [&] { return balance(world_->size()); });
    pipeline_ = gpipe::DistributedPipeline(
        std::move(model),
        gpipe::DistributedOptions(layers).chunks(FLAGS_chunks), world_);
  }
  if (first()) std::cout << "layers per partition: " << layers << std::endl;
}

gpipe::PipelineModule& EitherPipeline::module() {
  return std::visit(
      [](auto& pipeline) -> gpipe::PipelineModule& { return *pipeline; },
      pipeline_);
}

double EitherPipeline::train_step(torch::Tensor input, torch::Tensor target,
                                  Function loss) {
  gpipe::PipelineModule& pipeline = module();
  // The last batch of an epoch may be too small for --chunks.
  const auto schedule = gpipe::one_forward_one_backward(
      static_cast<int>(pipeline.balance().size()),
      static_cast<int>(
          gpipe::num_microbatches(input.size(0), pipeline.chunks())));
  return pipeline
      .train_step(input.to(pipeline.device()), target, loss, schedule)
      .loss.item<double>();
}

EitherPipeline::Total EitherPipeline::evaluate(torch::Tensor input,
                                               torch::Tensor target,
                                               Function score) {
  const gpipe::StepResult result =
      module().evaluate(input.to(module().device()), target, score);
  return {result.loss.item<double>() * *result.weight, *result.weight};
}

std::optional<torch::Tensor> EitherPipeline::forward(torch::Tensor input) {
  const torch::NoGradGuard no_grad;
  std::optional<torch::Tensor> output = std::visit(
      [&](auto& pipeline) -> std::optional<torch::Tensor> {
        return pipeline->forward(input.to(pipeline->device()));
      },
      pipeline_);
  if (output) output = output->cpu();
  return output;
}

std::string EitherPipeline::of_last(const std::string& mine) {
  return world_ ? gpipe::all_gather(*world_, mine).back() : mine;
}

}  // namespace examples
