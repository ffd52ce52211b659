// The pipeline of an example: all of it in this process, or, with
// --distributed, in several processes, each of which runs the example and has
// one partition.
#pragma once

#include <torch/nn/module.h>
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

namespace examples {

// Flags: --distributed, --partitions, --chunks, --timeout. The processes make
// the same calls; what they give is looked at where it is needed, and is the
// same in all of them.
class EitherPipeline {
 public:
  using Function =
      std::function<torch::Tensor(torch::Tensor output, torch::Tensor target)>;

  // `balance`: layers per partition, for so many partitions. Where there are
  // several processes, rank 0's counts: two that measure find two.
  EitherPipeline(
      torch::nn::Sequential model,
      const std::function<std::vector<int64_t>(int64_t partitions)>& balance);

  // The layers that are in this process.
  torch::nn::Module& module();

  // Forward, loss and backward by 1F1B; returns the loss, a mean over rows.
  double train_step(torch::Tensor input, torch::Tensor target, Function loss);
  // The mean over rows of what `score` returns for some of them, a mean too;
  // without gradients.
  double evaluate(torch::Tensor input, torch::Tensor target, Function score);
  // What the model returns, without gradients, on the CPU; where the last
  // partition is.
  std::optional<torch::Tensor> forward(torch::Tensor input);

  // Of one process: the one that speaks.
  bool first() const { return !world_ || world_->rank() == 0; }
  // What the process with the last partition gives, in all of them.
  std::string of_last(const std::string& mine);

 private:
  double run(torch::Tensor input, torch::Tensor target, Function function,
             gpipe::Schedule (*schedule)(int stages, int microbatches));

  std::shared_ptr<gpipe::World> world_;  // null: this process alone
  std::variant<gpipe::GPipe, gpipe::DistributedPipeline> pipeline_ =
      gpipe::GPipe(nullptr);
};

}  // namespace examples
