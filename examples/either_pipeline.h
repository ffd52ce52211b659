// The pipeline of an example. It runs in this process or, with --distributed,
// in several processes. Each of them runs the example and holds one partition.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/distributed/world.h"
#include "gpipe/pipeline_module.h"

namespace examples {

// A GPipe or a DistributedPipeline, as the flags say: --distributed,
// --partitions, --chunks, --timeout. With several processes, all make the same
// calls. Only the first partition uses an input and only the last one a target.
// Results are the same in all processes. Not thread-safe.
class EitherPipeline {
 public:
  using Function = std::function<gpipe::WeightedLoss(torch::Tensor output,
                                                     torch::Tensor target)>;

  // `balance`: returns the layers per partition for a number of partitions.
  // With several processes only rank 0 calls it, since each process could
  // measure different times.
  EitherPipeline(
      torch::nn::Sequential model,
      const std::function<std::vector<int64_t>(int64_t partitions)>& balance);

  // Access what GPipe and DistributedPipeline have in common.
  gpipe::PipelineModule& operator*() { return *pipeline_; }
  gpipe::PipelineModule* operator->() { return pipeline_.get(); }

  // Runs forward, loss and backward with the 1F1B schedule. Returns the loss:
  // the sum over all micro-batches, divided by their total weight.
  double train_step(torch::Tensor input, torch::Tensor target, Function loss);

  // Returns whether this process prints. It is true in one process only.
  bool first() const { return !world_ || world_->rank() == 0; }
  // Returns, in all processes, the text of the process with the last partition.
  std::string of_last(const std::string& mine);

 private:
  std::shared_ptr<gpipe::World> world_;  // null if there is one process
  std::shared_ptr<gpipe::PipelineModule> pipeline_;
};

// Reads the flags, runs an example and returns the exit code of main(): 1 if
// flags or data are wrong, 2 after another error. Prints errors on stderr.
int run_example(int argc, char** argv, const char* name, const char* about,
                const std::function<void()>& run);

}  // namespace examples
