// Public: a pipeline whose ranks are processes, on one machine or on several.
#pragma once

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/error.h"
#include "gpipe/distributed/layout.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "gpipe/runtime/checkpoint.h"
#include "gpipe/runtime/failure.h"
#include "gpipe/runtime/train.h"
#include "gpipe/runtime/value.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/skip/keeps_devices.h"

namespace gpipe {

class ForeignParameters;
class Runner;
struct Layer;

// How a model is spread over processes; each option returns the options.
struct DistributedOptions {
  /* implicit */ DistributedOptions(std::vector<int64_t> balance)
      : balance_(std::move(balance)) {}

  // Layers per partition, as GPipeOptions::balance. There are as many ranks in
  // a pipeline as partitions, divided by stages_per_rank.
  TORCH_ARG(std::vector<int64_t>, balance);

  // How many copies of the pipeline train together, each on rows of its own;
  // their gradients are added up. The world has this many times the ranks of a
  // pipeline; rank r is rank r % n of replica r / n, with n ranks to a
  // pipeline.
  TORCH_ARG(int64_t, data_parallel) = 1;

  // This rank's. None: the accelerator whose index is the local rank (modulo
  // their number), or, on a machine without one, the CPU.
  TORCH_ARG(std::optional<torch::Device>, device) = std::nullopt;

  // As in GPipeOptions. `chunks`: of forward() and evaluate(); for train_step()
  // the schedule says how many micro-batches there are.
  TORCH_ARG(int64_t, chunks) = 1;
  TORCH_ARG(Checkpoint, checkpoint) = Checkpoint::kExceptLast;
  TORCH_ARG(bool, deferred_batch_norm) = false;
  TORCH_ARG(int64_t, stages_per_rank) = 1;
  TORCH_ARG(Placement, placement) = Placement::kLoop;

  // Which way tensors take between the accelerators of two ranks. No difference
  // to the bits, nor on CPUs.
  TORCH_ARG(Transfers, transfers) = Transfers::kAuto;

  // Intra-op threads of the worker, on a CPU. 0: those that LibTorch would use
  // (at::get_num_threads()), at least 1.
  TORCH_ARG(int64_t, threads) = 0;
};

// Builds the layers first ... first + count - 1 of the model, and nothing else,
// so that no process has to hold it whole. Called once for each partition of
// this rank. Layers get the names that they would have in the whole Sequential
// ("17.weight").
using LayerBuilder =
    std::function<torch::nn::Sequential(int64_t first, int64_t count)>;

// The same training step as GPipe's, where each rank is a process that has its
// own partitions only. All ranks run the same program:
//
//   auto world =
//   gpipe::World::connect(gpipe::WorldOptions::from_environment());
//   gpipe::DistributedPipeline pipeline(
//       model, gpipe::DistributedOptions({2, 2}), world);
//   torch::optim::SGD optimizer(pipeline->parameters(), 0.1);
//   auto schedule = gpipe::one_forward_one_backward(2, 8);
//   for (auto& batch : loader) {
//     optimizer.zero_grad();
//     auto result = pipeline->train_step(batch.data, batch.target, loss,
//                                        schedule);
//     optimizer.step();
//   }
//
// parameters() are those of this rank's partitions, under the names that they
// have in the Sequential. Gradients, losses and BatchNorm statistics have the
// bits of GPipe::train_step() with the same schedule, micro-batches and threads
// per partition, dropout included if all ranks seed LibTorch's default
// generator alike.
//
// Several replicas: each gives rows of its own; a loss is weighted by its rows
// in all of them, each replica adds its gradients up as ever, and then replica
// 0's sum, 1's, ... are added in this order, the same bits on all.
//
// Errors: an exception on one rank, whether of a layer, a builder or a check,
// is thrown there with its type and ends the call on all other ranks with a
// PeerError, and so do a rank that dies, freezes, or runs something else.
// `.grad` is then as it was, on all ranks. After that only a new World and a
// new pipeline help.
//
// Threads: calls are served one after the other.
class DistributedPipelineImpl : public torch::nn::Module, public KeepsDevices {
 public:
  // Takes this rank's layers of `module` and moves them to the device; the
  // others may be freed. Waits until all ranks are here, and compares what they
  // were given. Errors: as GPipeImpl's constructor; c10::ValueError for a world
  // of another size than the balance and data_parallel make, or for direct
  // transfers where a rank can have none; PeerError if ranks differ in the
  // model, the balance or another option.
  DistributedPipelineImpl(torch::nn::Sequential module,
                          DistributedOptions options,
                          std::shared_ptr<World> world);
  // Skips must be declared by namespaces that all ranks make in the same order.
  // Nothing is known of other ranks' parameters: one that a layer here has
  // captured is a tensor of this rank's own, which train_step() refuses above.
  DistributedPipelineImpl(LayerBuilder build, DistributedOptions options,
                          std::shared_ptr<World> world);

  // As GPipeImpl::train_step(), called by all ranks with equal schedules and
  // options. `input` is looked at where the first stage is, `target` and `loss`
  // where the last one is; anything may stand there on other ranks. The input
  // is on device(), or on the CPU, from where it is brought there. The result
  // has the losses on all ranks; `loss` is the mean over all replicas, `losses`
  // are those of the own replica; outputs are where the last stage is; a
  // timeline is this rank's. c10::ValueError if a layer has captured a
  // parameter of another rank's layer.
  template <typename Output = torch::Tensor, typename Input, typename Target,
            typename Loss>
  StepResult train_step(Input input, Target target, Loss loss,
                        const Schedule& schedule,
                        const TrainOptions& options = {}) {
    return run(Value::wrap(std::move(input)), Value::wrap(std::move(target)),
               of_values<Output, Target>(loss), schedule, options);
  }

  // The losses of a mini-batch, in evaluation mode and without gradients, in up
  // to chunks() micro-batches.
  template <typename Output = torch::Tensor, typename Input, typename Target,
            typename Loss>
  StepResult evaluate(Input input, Target target, Loss loss,
                      const TrainOptions& options = {}) {
    return run_forward(Value::wrap(std::move(input)),
                       Value::wrap(std::move(target)),
                       of_values<Output, Target>(loss), options);
  }

  // What the last layer returns for `input`, where the last stage is; nothing
  // elsewhere. In the mode that the module is in, without gradients: those come
  // from train_step().
  template <typename Output = torch::Tensor, typename Input>
  std::optional<Output> forward(Input input) {
    StepResult result = run_forward(Value::wrap(std::move(input)), Value(),
                                    nullptr, TrainOptions());
    if (!result.outputs) return std::nullopt;
    return std::move(*result.outputs).template unwrap<Output>();
  }

  // Scales the gradients of all ranks so that their norm, as of one vector, is
  // at most `max_norm`; returns what it was. The same bits as GPipe's
  // clip_grad_norm_() on the whole model.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0);

  // Whether it is true on any rank, of all replicas: that a gradient is
  // infinite (training/grad_scaler.h), that somebody wants to stop. Called by
  // all ranks.
  bool any(bool here);

  // Layers of the whole model.
  int64_t size() const;
  const std::vector<int64_t>& balance() const { return options_.balance(); }
  const torch::Device& device() const { return device_; }
  // What DistributedOptions::transfers came to: kHost or kDirect.
  Transfers transfers() const { return transfers_; }
  // Who has which stages, and which of them this is.
  const RankLayout& layout() const { return layout_; }

  // Where this rank's own exception in the last step came from.
  std::optional<Failure> last_failure() const;

  // c10::TypeError: the pipeline decides where its parameters live.
  void to(torch::Device device, torch::Dtype dtype,
          bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;

  void pretty_print(std::ostream& stream) const override;

 private:
  using LossOfValues = std::function<torch::Tensor(Value, Value)>;
  // `loss` must live as long.
  template <typename Output, typename Target, typename Loss>
  static LossOfValues of_values(Loss& loss) {
    return [&loss](Value of_output, Value of_target) -> torch::Tensor {
      return loss(std::move(of_output).template unwrap<Output>(),
                  std::move(of_target).template unwrap<Target>());
    };
  }

  void take(const torch::nn::Sequential& module);
  void build_own(const LayerBuilder& build_layers);
  // `layers`: all; those of other ranks without a module.
  // `foreign`: what is known of these.
  void build(std::vector<Layer> layers, ForeignParameters foreign);
  StepResult run(const Value& input, const Value& target,
                 const LossOfValues& loss, const Schedule& schedule,
                 const TrainOptions& options);
  StepResult run_forward(const Value& input, const Value& target,
                         const LossOfValues& loss, const TrainOptions& options);

  DistributedOptions options_;
  std::shared_ptr<World> world_;
  RankLayout layout_;
  torch::Device device_ = torch::kCPU;
  Transfers transfers_ = Transfers::kHost;
  // With the layer's index; each parameter once.
  std::vector<std::pair<int64_t, torch::Tensor>> parameters_by_layer_;
  std::shared_ptr<Runner> runner_;
};
TORCH_MODULE(DistributedPipeline);

}  // namespace gpipe
