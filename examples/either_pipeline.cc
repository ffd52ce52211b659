#include "examples/either_pipeline.h"

#include <c10/util/Exception.h>
#include <gflags/gflags.h>

#include <exception>
#include <iostream>
#include <utility>

#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/gpipe.h"
#include "gpipe/program/flags.h"
#include "gpipe/program/milliseconds.h"
#include "gpipe/program/working_directory.h"
#include "gpipe/schedule.h"
#include "gpipe/text/lists.h"

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

std::shared_ptr<gpipe::World> connect() {
  if (!FLAGS_distributed) return nullptr;
  TORCH_CHECK_VALUE(FLAGS_timeout > 0, "--timeout=", FLAGS_timeout,
                    ": expected seconds, above 0");
  auto options = gpipe::WorldOptions::from_environment();
  options.timeout = gpipe::milliseconds_of(FLAGS_timeout);
  return gpipe::World::connect(options);
}

}  // namespace

EitherPipeline::EitherPipeline(
    torch::nn::Sequential model,
    const std::function<std::vector<int64_t>(int64_t partitions)>& balance)
    : world_(connect()) {
  TORCH_CHECK_VALUE(FLAGS_chunks > 0, "--chunks needs to be above 0");
  std::string layers;
  if (first()) {
    layers = gpipe::join(balance(world_ ? world_->size() : FLAGS_partitions));
    std::cout << "layers per partition: " << layers << std::endl;
  }
  if (world_) layers = gpipe::all_gather(*world_, layers).front();
  const auto numbers = gpipe::parse_numbers("balance", layers);
  if (world_) {
    pipeline_ =
        gpipe::DistributedPipeline(
            std::move(model),
            gpipe::DistributedOptions(numbers).chunks(FLAGS_chunks), world_)
            .ptr();
  } else {
    pipeline_ = gpipe::GPipe(std::move(model),
                             gpipe::GPipeOptions(numbers).chunks(FLAGS_chunks))
                    .ptr();
  }
}

double EitherPipeline::train_step(torch::Tensor input, torch::Tensor target,
                                  Function loss) {
  // The last batch of an epoch may be too small for --chunks.
  const auto schedule = gpipe::one_forward_one_backward(
      static_cast<int>(pipeline_->balance().size()),
      static_cast<int>(
          gpipe::num_microbatches(input.size(0), pipeline_->chunks())));
  return pipeline_
      ->train_step(input.to(pipeline_->device()), target, loss, schedule)
      .loss.item<double>();
}

std::string EitherPipeline::of_last(const std::string& mine) {
  return world_ ? gpipe::all_gather(*world_, mine).back() : mine;
}

int run_example(int argc, char** argv, const char* name, const char* about,
                const std::function<void()>& run) {
  try {
    gpipe::enter_working_directory();
    if (!gpipe::read_flags(&argc, &argv, about, "examples/")) return 0;
    TORCH_CHECK_VALUE(argc == 1, argv[1], ": options are --name=value");
    run();
    return 0;
  } catch (const c10::ValueError& error) {  // a wrong flag or wrong data
    std::cerr << name << ": " << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const c10::Error& error) {  // also one in another process
    std::cerr << name << ": " << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error.what() << "\n";
  }
  return 2;
}

}  // namespace examples
