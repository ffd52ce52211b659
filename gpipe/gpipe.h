// Public: GPipe, a torch::nn::Sequential trained through a pipeline.
#pragma once

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/checkpoint.h"
#include "gpipe/runtime/failure.h"
#include "gpipe/runtime/phase.h"
#include "gpipe/runtime/train.h"
#include "gpipe/runtime/value.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/skip/keeps_devices.h"

namespace gpipe {

class Pipeline;

// How a model becomes a pipeline; each option returns the options.
struct GPipeOptions {
  /* implicit */ GPipeOptions(std::vector<int64_t> balance)
      : balance_(std::move(balance)) {}

  // Layers per partition, each > 0; the sum is the number of layers. See
  // balancing/balancing.h for lists computed from a profile.
  TORCH_ARG(std::vector<int64_t>, balance);

  // One device per partition (with stages_per_rank: per rank), which may
  // repeat; extra ones are dropped. Empty (the default): every accelerator in
  // the order of its index, or, on a machine without one, the CPU for each.
  TORCH_ARG(std::vector<torch::Device>, devices);

  // How many micro-batches a mini-batch is split into, > 0. More of them
  // leave the partitions idle for less of the time, (n - 1) / (m + n - 1) for
  // n equal partitions and m micro-batches (GPipe, arXiv 1811.06965), but
  // each is smaller, so that its kernels use a device less well.
  TORCH_ARG(int64_t, chunks) = 1;

  TORCH_ARG(Checkpoint, checkpoint) = Checkpoint::kExceptLast;

  // BatchNorm layers gather running statistics over the mini-batch and commit
  // them once, instead of once per micro-batch: the running estimates are then
  // those of a plain forward of the whole mini-batch. Normalising goes on by
  // micro-batch. As in GPipe (arXiv 1811.06965) and torchgpipe's
  // DeferredBatchNorm; see also batch_norm.h. The layers of a pipeline within
  // a layer go by the option of that one.
  TORCH_ARG(bool, deferred_batch_norm) = false;

  // How many partitions share a rank, that is a worker with its device; their
  // number is to be a multiple of it. For the schedules of train_step() that
  // take several stages per rank, to wait less.
  TORCH_ARG(int64_t, stages_per_rank) = 1;

  // Which ones share it. A schedule of train_step() may place stages otherwise
  // where the devices are the same.
  TORCH_ARG(Placement, placement) = Placement::kLoop;

  // Intra-op threads of a CPU rank's worker. 0: an equal share of the
  // threads that LibTorch would use (at::get_num_threads()), at least 1.
  // Floating-point sums depend on it: equal numbers give equal bits.
  TORCH_ARG(int64_t, threads_per_partition) = 0;

  // Cells run one at a time, in the order in which they would start if each
  // took equally long, and not at the same time. What is held in memory at
  // which moment is then the same in every run: for dry runs on the meta device
  // (gpipe/meta.h), and to look for faults. Values are the same as without it.
  TORCH_ARG(bool, one_at_a_time) = false;
};

// Runs a Sequential as a pipeline of partitions, each on a device and with a
// worker thread of its own.
//
//   torch::nn::Sequential model(a, b, c, d);
//   gpipe::GPipe pipeline(model, gpipe::GPipeOptions({2, 2}).chunks(8));
//   for (auto& batch : loader) {
//     auto output = pipeline->forward(batch.data);
//     loss(output, batch.target).backward();
//   }
//
// forward() splits the mini-batch into micro-batches, which flow through the
// partitions at the same time, and returns ordinary tensors: losses, backward,
// autograd::grad, hooks and optimizers are those of LibTorch, and so are the
// values. The layers are shared with the given Sequential (parameters and
// buffers are moved to the partitions' devices) and keep their names
// ("0.weight"), so that a checkpoint does not depend on the balance.
//
// Differences from the plain Sequential: layers see one micro-batch at a time
// (BatchNorm normalises with its statistics); random operators draw from a
// generator per micro-batch and layer, seeded by one draw from LibTorch's
// default generator per forward in which any of them ran, so that dropout is
// the same for every balance and checkpoint mode, and differs from the plain
// model's; create_graph (double backward) is refused.
//
// Threads: forward and backward may be called from any thread; calls on one
// GPipe are served one after the other.
class GPipeImpl : public torch::nn::Module, public KeepsDevices {
 public:
  // Takes the layers of `module` and moves them to the devices. Errors:
  // c10::ValueError for a balance or a number of chunks that does not fit, the
  // same layer twice, a parameter or a buffer shared by partitions on different
  // devices, or a BatchNorm's statistics shared by any; c10::TypeError for
  // skips that do not match, or a layer that would have to be moved and holds a
  // GPipe; c10::IndexError for fewer devices than partitions. Nothing has been
  // moved then.
  GPipeImpl(torch::nn::Sequential module, GPipeOptions options);

  // Runs a mini-batch: a torch::Tensor, a std::vector<torch::Tensor> or a
  // std::tuple of 1 to 8 of them, on devices()[0]; dimension 0, equal in all
  // of them, is split as torch::chunk does. Returns the last layer's value,
  // concatenated along dimension 0, on devices().back(). In training mode and
  // with gradients enabled micro-batches are checkpointed as asked for.
  //
  // Errors: c10::TypeError for a value that is no tensor, or an Output that is
  // not what the last layer returns; c10::ValueError for tensors of unequal
  // sizes or on a wrong device; whatever a layer throws, unchanged in type
  // (last_failure() tells where). Of several the first in schedule order is
  // thrown; the pipeline is usable afterwards.
  template <typename Output = torch::Tensor, typename Input>
  Output forward(Input input) {
    return run(Value::wrap(std::move(input))).template unwrap<Output>();
  }

  // Runs forward, loss and backward of a mini-batch by `schedule` (see
  // gpipe/schedule.h), so that the backward of a micro-batch need not wait for
  // the forwards of all: 1F1B holds the activations of as many micro-batches as
  // there are partitions, where forward() and backward() hold all.
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
  // `target`: a tensor, a vector or a tuple, on any device, with a row for each
  // of the input's. `loss(output, target)` gets those of a micro-batch, on the
  // last partition's device and on its worker's thread, and returns one
  // floating-point number, a mean over its rows: what is differentiated is the
  // mean over the micro-batches, weighted by rows. Gradients are added to
  // `.grad` of the parameters (and of an input that requires grad) and hooks
  // are called once, after the last action; if anything throws, `.grad` is as
  // before, unless that is a hook, or the graph that has made the input, which
  // come while gradients are being added. The optimizer may be stepped
  // afterwards.
  //
  // `schedule`: any valid one with as many stages as partitions and as many
  // ranks as ranks; it, not chunks(), says how many micro-batches there are,
  // which must be what the rows are split into. Where it has no recompute, the
  // recomputes of checkpoint() are put in, in training mode (kNever for the
  // pure schedule). A schedule without backwards computes losses alone, without
  // a graph.
  //
  // Errors: those of forward(), last_failure() included ("loss" stands for the
  // loss function's place among the layers); c10::ValueError for a schedule, a
  // target or a loss that does not fit; std::invalid_argument for a schedule
  // that is not valid, see validate(); c10::Error for a loss without graph, or
  // one that changes its target in place where it is computed again;
  // NonFiniteError with TrainOptions::check_finite.
  template <typename Output = torch::Tensor, typename Input, typename Target,
            typename Loss>
  StepResult train_step(Input input, Target target, Loss loss,
                        const Schedule& schedule,
                        const TrainOptions& options = {}) {
    return run_train(
        Value::wrap(std::move(input)), Value::wrap(std::move(target)),
        [&loss](Value of_output, Value of_target) -> torch::Tensor {
          return loss(std::move(of_output).template unwrap<Output>(),
                      std::move(of_target).template unwrap<Target>());
        },
        schedule, options);
  }

  // Scales the gradients of all parameters, on whichever devices they are, so
  // that their norm, as of one vector, is at most `max_norm`; returns what it
  // was, after waiting for the devices. torch::nn::utils::clip_grad_norm_()
  // wants them on one device, where this has its bits, but that a parameter
  // which several layers share counts once.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0);

  // Layers.
  int64_t size() const { return static_cast<int64_t>(layers_.size()); }
  bool is_empty() const { return layers_.empty(); }

  // Layer `index`, counted from the end if negative. c10::IndexError.
  std::shared_ptr<torch::nn::Module> operator[](int64_t index) const;

  // The layers in order, as those of torch::nn::Sequential.
  using Iterator = std::vector<torch::nn::AnyModule>::iterator;
  using ConstIterator = std::vector<torch::nn::AnyModule>::const_iterator;
  Iterator begin() { return layers_.begin(); }
  Iterator end() { return layers_.end(); }
  ConstIterator begin() const { return layers_.begin(); }
  ConstIterator end() const { return layers_.end(); }

  // One per partition: [0] takes the input, the last gives the output.
  const std::vector<torch::Device>& devices() const {
    return options_.devices();
  }
  const std::vector<int64_t>& balance() const { return options_.balance(); }
  int64_t chunks() const { return options_.chunks(); }
  Checkpoint checkpoint() const { return options_.checkpoint(); }

  // Where the exception of the last failed forward or backward came from;
  // none if the last one succeeded.
  std::optional<Failure> last_failure() const;

  // c10::TypeError: the pipeline decides where its parameters live.
  void to(torch::Device device, torch::Dtype dtype,
          bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  void cuda();
  void cpu();
  // Casts parameters and buffers, as Module::to does.
  void to(torch::Dtype dtype, bool non_blocking = false) override;

  void pretty_print(std::ostream& stream) const override;

 private:
  Value run(Value input);
  StepResult run_train(const Value& input, const Value& target,
                       const std::function<torch::Tensor(Value, Value)>& loss,
                       const Schedule& schedule, const TrainOptions& options);

  GPipeOptions options_;
  std::vector<torch::nn::AnyModule> layers_;
  std::shared_ptr<Pipeline> pipeline_;
};
TORCH_MODULE(GPipe);

}  // namespace gpipe
