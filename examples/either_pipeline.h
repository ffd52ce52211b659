// The pipeline of an example. It runs in this process or, with --distributed,
// in several processes. Each of them runs the example and holds one partition.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/world.h"
#include "gpipe/gpipe.h"
#include "gpipe/pipeline_module.h"

namespace examples {

// A GPipe or a DistributedPipeline, as the flags say: --distributed,
// --partitions, --chunks, --timeout. With several processes, all make the same
// calls. Only the first partition uses an input and only the last one a target.
// Results are the same in all processes unless a comment says otherwise.
// Not thread-safe.
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

  // Returns what GPipe and DistributedPipeline have in common.
  gpipe::PipelineModule& module();

  // Runs forward, loss and backward with the 1F1B schedule. Returns the loss:
  // the sum over all micro-batches, divided by their total weight.
  double train_step(torch::Tensor input, torch::Tensor target, Function loss);
  // A sum over items (images, characters) and the number of these items.
  struct Total {
    double sum = 0, items = 0;

    double mean() const { return sum / items; }
    Total& operator+=(const Total& other) {
      sum += other.sum;
      items += other.items;
      return *this;
    }
  };
  // Returns the sum of `score` over all micro-batches, and its total weight, in
  // evaluation mode and without gradients.
  Total evaluate(torch::Tensor input, torch::Tensor target, Function score);
  // Returns the model's output on the CPU, computed without gradients, or
  // nullopt if this process does not hold the last partition.
  std::optional<torch::Tensor> forward(torch::Tensor input);

  // Returns whether this process prints. It is true in one process only.
  bool first() const { return !world_ || world_->rank() == 0; }
  // Returns, in all processes, the text of the process with the last partition.
  std::string of_last(const std::string& mine);

 private:
  std::shared_ptr<gpipe::World> world_;  // null if there is one process
  std::variant<gpipe::GPipe, gpipe::DistributedPipeline> pipeline_ =
      gpipe::GPipe(nullptr);
};

}  // namespace examples
