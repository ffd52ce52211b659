// What GPipe and DistributedPipeline have in common.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpipe/failure.h"
#include "gpipe/runtime/cell/layer.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/skip/skippable.h"
#include "gpipe/train.h"

namespace gpipe {

namespace internal {
struct Layer;
struct StepArguments;
}  // namespace internal

// A model that trains through a pipeline, in one process (GPipe) or in several
// (DistributedPipeline). Code that takes a PipelineModule, or that is a
// template over the two types, trains both. Only forward() differs between
// them.
//
// In several processes all ranks make the same calls. What a rank does not need
// may be anything: see DistributedPipelineImpl::train_step().
class PipelineModule : public torch::nn::Module, public internal::KeepsDevices {
 public:
  // Runs forward, loss and backward of a mini-batch in the order of `schedule`
  // (see gpipe/schedule.h). The backward of a micro-batch then need not wait
  // for the forwards of all others. For example, 1F1B holds the activations of
  // as many micro-batches as there are partitions, while forward() and
  // backward() hold all.
  //
  //   auto schedule = gpipe::one_forward_one_backward(4, 16);
  //   auto result = pipeline->train_step(
  //       batch.data, batch.target,
  //       [](torch::Tensor output, torch::Tensor target) {
  //         return torch::nn::functional::cross_entropy(output, target);
  //       },
  //       schedule);
  //   optimizer.step();
  //
  // `input`: as in forward().
  // `target`: a tensor, a vector or a tuple, on any device, with one row for
  // each row of the input. If the input is given as Microbatches, so is the
  // target, with as many parts. It is a constant: a tensor that requires grad
  // is refused if the schedule has backwards.
  // `loss(output, target)`: a function that gets the output and target of one
  // micro-batch, on the last partition's device and its worker's thread. It
  // returns a tensor with one floating-point number, or a WeightedLoss. The
  // loss of a checkpointed micro-batch is computed again in its recompute: a
  // function that counts or changes something asks is_recomputing()
  // (gpipe/phase.h).
  // - A tensor is a mean over the micro-batch's rows. The step differentiates
  //   the mean of these losses, weighted by rows. The rows of a part of
  //   Microbatches are dimension 0 of its target, which must have one.
  // - A WeightedLoss is a sum with its weight. The step differentiates the sum
  //   of all sums, and divides gradients once by the sum of all weights, over
  //   micro-batches and replicas. Use it if a micro-batch has any number of
  //   valid tokens: a mean per micro-batch gives wrong gradients then.
  // `schedule`: any valid schedule with as many stages as partitions and as
  // many ranks as this pipeline. It sets the number of micro-batches, not
  // chunks(). There must be at least one row for each; they are split as
  // torch::chunk does, or, if that gives fewer pieces, as torch::tensor_split.
  // In training mode, if the schedule has no recompute actions, those of
  // checkpoint() are added (use kNever to run the schedule unchanged). A
  // schedule without backwards only computes losses, without a graph.
  // O and L actions (with_offload()) copy what the chosen cells keep for their
  // backward to the host and back, if the partition is on an accelerator. They
  // change no bit. Cells that checkpoint() recomputes are not offloaded.
  //
  // Gradients are added to `.grad` of the parameters (and of an input that
  // requires grad) and hooks are called once, after the last action. If the
  // step throws, `.grad` is unchanged, with two exceptions. A hook or the graph
  // that made the input may throw: these run while gradients are being added.
  // And a layer may add to `.grad` itself, by a backward() of its own. The
  // optimizer may step as soon as train_step() has returned.
  //
  // Throws the errors of forward(), with last_failure() set ("loss" is the
  // layer name of the loss function). Throws c10::ValueError if a schedule, a
  // target or a loss does not fit, or if the total weight is not positive.
  // Throws std::invalid_argument if the schedule
  // is not valid, see validate(). Throws c10::Error if the loss has no graph,
  // or if a recomputed loss changes its target in place. Throws NonFiniteError
  // if TrainOptions::check_finite is set and a value is not finite.
  template <typename Output = torch::Tensor, typename Input, typename Target,
            typename Loss>
  StepResult train_step(Input input, Target target, Loss loss,
                        const Schedule& schedule,
                        const TrainOptions& options = {}) {
    return run_train_step(internal::Batch::wrap(std::move(input)),
                          internal::Batch::wrap(std::move(target)),
                          on_values<Output, Target>(loss), schedule, options);
  }

  // Returns the losses of a mini-batch in evaluation mode, without gradients,
  // in up to chunks() micro-batches, or one for each part of Microbatches.
  // Arguments, result and errors are those of train_step().
  template <typename Output = torch::Tensor, typename Input, typename Target,
            typename Loss>
  StepResult evaluate(Input input, Target target, Loss loss,
                      const TrainOptions& options = {}) {
    const auto loss_on_values = on_values<Output, Target>(loss);
    return run_forward(internal::Batch::wrap(std::move(input)),
                       internal::Batch::wrap(std::move(target)),
                       &loss_on_values, options, /*evaluate=*/true);
  }

  // Scales the gradients of all parameters of the model, on any devices and in
  // any process, so that the norm of all of them as one vector is at most
  // `max_norm`. Returns the norm before scaling, 0 if there are no gradients.
  // Waits for the devices.
  // `norm_type`: the p of the p-norm; infinity means the largest absolute
  // value.
  //
  // torch::nn::utils::clip_grad_norm_() needs all gradients on one device;
  // there the bits are the same, with three exceptions. A parameter shared by
  // several layers counts once here. An infinite `max_norm` changes no gradient
  // here, whereas LibTorch makes all gradients NaN if their norm is not finite.
  // Sparse gradients are scaled here, and are not in LibTorch.
  //
  // Throws c10::ValueError if `max_norm` is negative, for which LibTorch
  // reverses gradients, or NaN. Not thread-safe.
  virtual double clip_grad_norm_(double max_norm, double norm_type = 2.0) = 0;

  // Returns whether `here` is true in any process: for example whether a
  // gradient is infinite (training/grad_scaler.h), or a user wants to stop.
  virtual bool any(bool here) = 0;

  // The number of layers of the whole model.
  int64_t size() const;
  bool is_empty() const { return size() == 0; }

  // Returns layer `index` of the model, counted from the end if negative; null
  // if another process has it. Throws c10::IndexError if there is no such
  // layer.
  std::shared_ptr<torch::nn::Module> operator[](int64_t index) const;

  // The layers of this process in order, as in torch::nn::Sequential.
  using Iterator = std::vector<torch::nn::AnyModule>::iterator;
  using ConstIterator = std::vector<torch::nn::AnyModule>::const_iterator;
  Iterator begin() { return layers_.begin(); }
  Iterator end() { return layers_.end(); }
  ConstIterator begin() const { return layers_.begin(); }
  ConstIterator end() const { return layers_.end(); }

  // The layers per partition.
  virtual const std::vector<int64_t>& balance() const = 0;
  // The micro-batches of forward() and evaluate().
  virtual int64_t chunks() const = 0;
  virtual Checkpoint checkpoint() const = 0;
  // The device on which the first partition of this process takes its input.
  virtual const torch::Device& device() const = 0;

  // Returns the tensors for the optimizer of this process: its parameters that
  // require a gradient, each once, or the shards of them that it updates
  // (DistributedOptions::shard_optimizer).
  virtual std::vector<torch::Tensor> optimizer_parameters() const;
  // Brings the parameters that other processes have updated here. Call after
  // each step of the optimizer, in all processes. Does nothing where each
  // process updates all of its parameters.
  virtual void share_parameters() {}

  // Returns where the exception of the last pass came from, or nullopt if that
  // pass succeeded, or if it did not begin: its arguments were refused, or
  // another rank had failed. Of another rank's failure during the pass, returns
  // where this rank noticed it.
  virtual std::optional<Failure> last_failure() const = 0;

  // Throws c10::TypeError: the pipeline chooses the devices of its parameters.
  void to(torch::Device device, torch::Dtype dtype,
          bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  void cuda();
  void cpu();
  // Throws c10::TypeError: a copy would need workers and devices of its own.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  // Casts parameters and buffers. Counters, indices and masks, whose numbers
  // are neither floating-point nor complex, stay as they are, as in Python;
  // LibTorch's Module::to() casts them, too.
  void to(torch::Dtype dtype, bool non_blocking = false) override;

 protected:
  // `name`: the type's name without its namespace. `devices`: the option that
  // chooses devices, for errors.
  PipelineModule(const std::string& name, std::string devices);

  // Notes of which Sequential the pipeline is made.
  void set_source(const torch::nn::Sequential& model) {
    source_.emplace(model);
  }
  // Registers a layer of this process. Call it in the order of the layers.
  void add_layer(const internal::Layer& layer);
  // Throws c10::ValueError if layers were added to the Sequential, or if a
  // layer was replaced in this module or unregistered from it: steps run the
  // layers that the pipeline was made of.
  void check_layers() const;
  // Returns the number of micro-batches of evaluate() for `input`. Called under
  // the pipeline's lock.
  virtual int64_t count_microbatches(const internal::Batch& input) = 0;
  // Runs a step, with a `check` of its own.
  virtual StepResult run_step(internal::StepArguments given) = 0;
  // Returns the rank of each stage.
  virtual const std::vector<int>& rank_of_stage() const = 0;

  // Runs the forwards of a mini-batch without gradients, in the current mode of
  // the module, or in evaluation mode.
  StepResult run_forward(const internal::Batch& input,
                         const internal::Batch& target,
                         const internal::LossFunction* loss,
                         const TrainOptions& options, bool evaluate = false);

 private:
  // Returns a loss function on Values. It refers to `loss`, which must live as
  // long.
  template <typename Output, typename Target, typename Loss>
  static internal::LossFunction on_values(Loss& loss) {
    using Value = internal::Value;
    using Part = internal::PartOf<Target>;
    using Result = std::invoke_result_t<Loss&, Output, Part>;
    constexpr bool kWeighted =
        std::is_same_v<std::decay_t<Result>, WeightedLoss>;
    using Returned = std::conditional_t<kWeighted, WeightedLoss, torch::Tensor>;
    return [&loss](Value output, Value target) -> Returned {
      return loss(std::move(output).template unwrap<Output>(),
                  std::move(target).template unwrap<Part>());
    };
  }
  StepResult run_train_step(const internal::Batch& input,
                            const internal::Batch& target,
                            const internal::LossFunction& loss,
                            const Schedule& schedule,
                            const TrainOptions& options);
  [[noreturn]] void refuse_to_move() const;

  const std::string devices_option_;
  std::optional<internal::SourceModel> source_;
  // The layers of this process, and the place of each in the model.
  std::vector<torch::nn::AnyModule> layers_;
  std::vector<int64_t> indices_;
};

}  // namespace gpipe
