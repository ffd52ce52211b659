// GPipe, which trains a torch::nn::Sequential through a pipeline.
#pragma once

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/failure.h"
#include "gpipe/phase.h"
#include "gpipe/pipeline_module.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/skip/skippable.h"
#include "gpipe/train.h"

namespace gpipe {

namespace internal {
class Pipeline;
}  // namespace internal

// The options of a GPipe. Each setter returns the options, so calls chain.
struct GPipeOptions {
  /* implicit */ GPipeOptions(std::vector<int64_t> balance)
      : balance_(std::move(balance)) {}

  // The number of layers of each partition. Each is > 0, and the sum is the
  // number of layers. balancing/balancing.h computes such lists from a profile.
  TORCH_ARG(std::vector<int64_t>, balance);

  // One device per rank; without `stages_per_rank`, per partition. A device may
  // be repeated, and extra devices are dropped. If the list is empty (the
  // default), the ranks use all accelerators in index order or, on a machine
  // without one, the CPU.
  TORCH_ARG(std::vector<torch::Device>, devices);

  // The number of micro-batches that a mini-batch is split into, > 0. n equal
  // partitions are idle for (n - 1) / (m + n - 1) of the time with m
  // micro-batches (GPipe, arXiv 1811.06965). More micro-batches shorten this
  // bubble, but each one is smaller, so its kernels use a device less well.
  TORCH_ARG(int64_t, chunks) = 1;

  // Elements of the input (of a vector or a tuple, counted from 0) that are not
  // split: every micro-batch gets them whole, such as an attention mask that
  // all rows share. Their gradients add up over micro-batches. If layers pass
  // such a tensor on unchanged, it goes to another device or process once per
  // step. Not used for Microbatches.
  TORCH_ARG(std::vector<int64_t>, unsplit) = {};

  // Which micro-batches are checkpointed: they keep only the inputs of their
  // cells and are recomputed before their backward (schedule/microbatches.h).
  // Only in training mode: call train() of the pipeline, not of the Sequential.
  TORCH_ARG(Checkpoint, checkpoint) = Checkpoint::kExceptLast;

  // If true, BatchNorm layers collect running statistics over the mini-batch
  // and commit them once, instead of once per micro-batch. The running
  // estimates are then the same as after a plain forward of the whole
  // mini-batch. Each micro-batch is still normalised by its own statistics.
  // This is as in GPipe (arXiv 1811.06965) and torchgpipe's DeferredBatchNorm;
  // see also batch_norm.h. If a layer contains another pipeline, that
  // pipeline's own option decides for its layers.
  TORCH_ARG(bool, deferred_batch_norm) = false;

  // The number of partitions per rank (a worker with its device). The number of
  // partitions must be a multiple of it. Schedules of train_step() with several
  // stages per rank use it to shorten the bubble.
  TORCH_ARG(int64_t, stages_per_rank) = 1;

  // Which partitions share a rank. A schedule of train_step() may place stages
  // differently if the devices are the same.
  TORCH_ARG(Placement, placement) = Placement::kLoop;

  // The intra-op threads of a CPU rank's worker. 0 means an equal share of
  // LibTorch's threads (at::get_num_threads()), at least 1. Floating-point sums
  // depend on this number: equal numbers give equal bits.
  TORCH_ARG(int64_t, threads_per_partition) = 0;

  // If true, only one cell runs at a time, in the order in which cells would
  // start if each took equally long. Memory use is then the same in every run,
  // which helps dry runs on the meta device (gpipe/meta.h) and debugging.
  // Values do not change.
  TORCH_ARG(bool, one_at_a_time) = false;
};

// A pipeline that runs a Sequential. Each partition has a device and runs on a
// worker thread; with `stages_per_rank`, several partitions share a worker.
//
//   torch::nn::Sequential model(a, b, c, d);
//   gpipe::GPipe pipeline(model, gpipe::GPipeOptions({2, 2}).chunks(8));
//   for (auto& batch : loader) {
//     auto output = pipeline->forward(batch.data);
//     loss(output, batch.target).backward();
//   }
//
// forward() splits the mini-batch into micro-batches, which flow through the
// partitions at the same time. It returns ordinary tensors: losses, backward,
// autograd::grad, hooks and optimizers work as in plain LibTorch and give the
// same values. The layers are shared with the given Sequential, and their
// parameters and buffers are moved to the partitions' devices. They keep their
// names ("0.weight"), so saved parameters do not depend on the balance.
//
// Differences from the plain Sequential:
// - Layers see one micro-batch at a time; BatchNorm normalises by its
//   statistics.
// - Random operators draw from one generator per micro-batch and layer. These
//   are seeded by one draw from LibTorch's default generator per forward in
//   which a random operator ran. So dropout is the same for every balance and
//   checkpoint mode, but differs from the plain model.
// - create_graph (double backward) is refused.
//
// Threads: forward and backward may be called from any thread. Calls on one
// GPipe run one after the other, and those on two GPipes of different layers at
// the same time. Two GPipes of the same layers must not run at the same time:
// evaluate() of one sets the mode of layers that the other is running.
class GPipeImpl : public PipelineModule {
 public:
  // Takes the layers of `module` and moves them to the devices.
  //
  // Throws c10::ValueError if the balance or the number of chunks does not fit,
  // if a layer occurs twice, if partitions on different devices share a
  // parameter or a buffer, or if any two partitions share a BatchNorm's
  // statistics. Throws c10::TypeError if skips do not match, or if a layer that
  // contains a GPipe would have to be moved. Throws c10::IndexError if there
  // are fewer devices than partitions. After these errors nothing has been
  // moved; after one of a device, such as c10::OutOfMemoryError, some layers
  // may have been.
  GPipeImpl(torch::nn::Sequential module, GPipeOptions options);

  // Runs a mini-batch and returns the last layer's output.
  //
  // `input`: a torch::Tensor, a std::vector<torch::Tensor> or a std::tuple of 1
  // to 8 tensors, on devices()[0]. Dimension 0 must be equal in all tensors,
  // except those in GPipeOptions::unsplit, and is split as torch::chunk does.
  // The outputs of the micro-batches are
  // concatenated along dimension 0, on devices().back(). In training mode and
  // with gradients enabled, micro-batches are checkpointed as checkpoint()
  // says.
  //
  // Throws c10::TypeError if a value is not a tensor, or if `Output` is not the
  // type that the last layer returns. Throws c10::ValueError if tensors have
  // unequal sizes or are on a wrong device, or if, after the pipeline was made,
  // layers were added to the Sequential or replaced in the pipeline. Rethrows
  // an exception of a layer with its type unchanged, and last_failure() tells
  // where it came from. If several cells fail, the first exception in schedule
  // order is thrown. The pipeline remains usable after an error.
  template <typename Output = torch::Tensor, typename Input>
  Output forward(Input input) {
    return run(internal::Batch::wrap(std::move(input)))
        .template unwrap<Output>();
  }

  // Runs a mini-batch that is already split, with one micro-batch for each of
  // any number of parts (> 0), of any shapes. chunks() is not used. Returns the
  // output of each.
  template <typename Output = torch::Tensor, typename Input>
  Microbatches<Output> forward(Microbatches<Input> input) {
    return run(internal::Batch::wrap(std::move(input)))
        .template unwrap_parts<Output>();
  }

  // train_step(), evaluate(), clip_grad_norm_() and what else is not listed
  // here: see PipelineModule.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0) override;
  bool any(bool here) override { return here; }

  // One device per partition: the first takes the input, the last gives the
  // output.
  const std::vector<torch::Device>& devices() const {
    return options_.devices();
  }
  const torch::Device& device() const override;
  const std::vector<int64_t>& balance() const override {
    return options_.balance();
  }
  int64_t chunks() const override { return options_.chunks(); }
  Checkpoint checkpoint() const override { return options_.checkpoint(); }
  std::optional<Failure> last_failure() const override;

  void pretty_print(std::ostream& stream) const override;

 private:
  internal::Batch run(internal::Batch input);
  int64_t count_microbatches(const internal::Batch& input) override;
  StepResult run_step(internal::StepArguments given) override;
  const std::vector<int>& rank_of_stage() const override {
    return rank_of_stage_;
  }

  GPipeOptions options_;
  std::vector<int> rank_of_stage_;
  std::shared_ptr<internal::Pipeline> pipeline_;
};
TORCH_MODULE(GPipe);

}  // namespace gpipe
