#include "examples/either_pipeline.h"

#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>
#include <gflags/gflags.h>

#include <string>
#include <utility>

#include "gpipe/base/program.h"
#include "gpipe/base/run_main.h"
#include "gpipe/base/text.h"
#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/gpipe.h"

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

std::shared_ptr<gpipe::World> connect() {
  if (!FLAGS_distributed) return nullptr;
  TORCH_CHECK_VALUE(FLAGS_timeout > 0, "--timeout=", FLAGS_timeout,
                    ": expected seconds, above 0");
  auto options = gpipe::WorldOptions::from_environment();
  options.timeout = gpipe::milliseconds_of(FLAGS_timeout);
  return gpipe::World::connect(options);
}

std::shared_ptr<gpipe::PipelineModule> make_pipeline(
    const std::shared_ptr<gpipe::World>& world, torch::nn::Sequential model,
    const std::function<std::vector<int64_t>(int64_t partitions)>& balance) {
  TORCH_CHECK_VALUE(FLAGS_chunks > 0, "--chunks needs to be above 0");
  std::string layers;
  if (!world || world->rank() == 0) {
    layers =
        absl::StrJoin(balance(world ? world->size() : FLAGS_partitions), ",");
    std::cout << "layers per partition: " << layers << std::endl;
  }
  if (world) layers = gpipe::all_gather(*world, layers).front();
  const auto numbers = gpipe::parse_numbers("balance", layers);
  if (!world) {
    const auto options = gpipe::GPipeOptions(numbers).chunks(FLAGS_chunks);
    return gpipe::GPipe(std::move(model), options).ptr();
  }
  const auto options = gpipe::DistributedOptions(numbers).chunks(FLAGS_chunks);
  return gpipe::DistributedPipeline(std::move(model), options, world).ptr();
}

int run_example(int argc, char** argv, const char* name, const char* about,
                const std::function<void()>& run) {
  return gpipe::run_main(argc, argv, name, about, "examples/", run);
}

}  // namespace examples
