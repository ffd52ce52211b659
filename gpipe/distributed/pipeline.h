// A pipeline whose ranks are processes, on one machine or on several.
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
#include "gpipe/distributed/runner/layout.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "gpipe/failure.h"
#include "gpipe/pipeline_module.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/skip/skippable.h"
#include "gpipe/train.h"

namespace gpipe {

namespace internal {
class ForeignParameters;
class Runner;
struct Layer;
}  // namespace internal

// How a model is distributed over processes. Each setter returns the options.
struct DistributedOptions {
  /* implicit */ DistributedOptions(std::vector<int64_t> balance)
      : balance_(std::move(balance)) {}

  // Other names of threads_per_partition().
  DistributedOptions& threads(int64_t number) {
    return threads_per_partition(number);
  }
  int64_t threads() const { return threads_per_partition(); }

  // Layers per partition, as in GPipeOptions::balance. A pipeline has as many
  // ranks as partitions, divided by `stages_per_rank`.
  TORCH_ARG(std::vector<int64_t>, balance);

  // The number of replicas: copies of the pipeline that train together, each on
  // its own rows. Their gradients are added up. With n ranks per pipeline, the
  // world has data_parallel * n ranks, and rank r of the world is rank r % n of
  // replica r / n.
  TORCH_ARG(int64_t, data_parallel) = 1;

  // The device of this rank. Default: the accelerator with the index local rank
  // modulo the number of accelerators; without an accelerator, the CPU.
  TORCH_ARG(std::optional<torch::Device>, device) = std::nullopt;

  // As in GPipeOptions. `chunks` applies to forward() and evaluate(); for
  // train_step() the schedule says how many micro-batches there are.
  TORCH_ARG(int64_t, chunks) = 1;
  TORCH_ARG(std::vector<int64_t>, unsplit) = {};
  TORCH_ARG(Checkpoint, checkpoint) = Checkpoint::kExceptLast;
  TORCH_ARG(bool, deferred_batch_norm) = false;
  TORCH_ARG(int64_t, stages_per_rank) = 1;
  TORCH_ARG(Placement, placement) = Placement::kLoop;

  // The transport of tensors between accelerators of different ranks. It
  // changes only the speed, not the results. kDirect needs accelerators.
  TORCH_ARG(Transfers, transfers) = Transfers::kAuto;

  // Whether the optimizer is spread over the replicas (ZeRO stage 1): each
  // replica gets the gradients of its share of the rows of each parameter, and
  // its optimizer updates these rows. Make the optimizer of
  // optimizer_parameters(), and call share_parameters() after its step. The
  // state of the optimizer then takes 1 / data_parallel of the memory, and as
  // many bytes are sent as without sharding. Optimizers that work element by
  // element (SGD, Adam, AdamW, RMSprop, Adagrad) leave the same bits as without
  // sharding. Others (LBFGS) would compute something else, and this class does
  // not see them: check_shardable() (training/shardable.h) refuses them.
  // clip_grad_norm_() adds up the norm in another order. Parameters get no
  // `.grad` and their hooks are not called; their shards have gradients. So an
  // optimizer of parameters() changes nothing, and without share_parameters()
  // the replicas train different models; neither is checked. No effect with one
  // replica.
  TORCH_ARG(bool, shard_optimizer) = false;

  // Whether gradients are added up over the replicas by the collective
  // operations of the backend between accelerators (NCCL's all-reduce and
  // reduce-scatter), in an order of the backend. Faster with many replicas, but
  // gradients have other bits than without: sums of more than two numbers are
  // rounded in another order, and NCCL's order depends on the machine. All
  // replicas still get equal bits. No effect through the hosts
  // (DistributedPipelineImpl::transfers() is kHost), or with one replica.
  TORCH_ARG(bool, collective_sums) = false;

  // The intra-op threads of the worker, on a CPU. 0: as many as LibTorch would
  // use (at::get_num_threads()).
  TORCH_ARG(int64_t, threads_per_partition) = 0;
};

// A function that returns the layers `first` ... `first` + `count` - 1 of the
// model and no others, so that no process has to hold the whole model. It is
// called once for each partition of this rank. Layers that the returned
// Sequential has numbered get the names that they would have in the whole one
// ("17.weight"). Layers that were added with a name keep it ("head.weight").
using LayerBuilder =
    std::function<torch::nn::Sequential(int64_t first, int64_t count)>;

// A model whose training step is that of GPipe, but each rank is a process and
// has only its own partitions. All ranks run the same program:
//
//   auto world = gpipe::World::connect(
//       gpipe::WorldOptions::from_environment());
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
// parameters() returns those of this rank's partitions, with their names in the
// Sequential. Gradients, losses and BatchNorm statistics have the same bits as
// with GPipe::train_step(), given the same schedule, micro-batches and threads
// per partition. This includes dropout if all ranks seed LibTorch's default
// generator equally.
//
// With several replicas, each replica gets its own rows. When the pipeline is
// made, all replicas get the parameters and buffers of replica 0, if theirs
// differ. A loss is weighted by
// its rows among the rows of all replicas. Each replica adds up its own
// gradients as without replicas; then the sums of replica 0, 1, ... are added
// in this order, so all replicas get the same bits. With collective_sums they
// are added in the order of NCCL.
//
// Errors: if a layer, a builder or a check throws on one rank, the exception is
// thrown there with its type, and the call throws PeerError on all other ranks.
// All ranks throw PeerError if a rank dies, freezes, or runs something else.
// `.grad` is then unchanged on all ranks. After that, and after an error of the
// constructor, make a new World and a new pipeline. Wrong arguments of a call
// leave the World as it is, and the next call works:
// - If the input, the target, the schedule or the grad mode is wrong on one
//   rank, it throws what GPipe throws, and the others a PeerError with
//   Fault::kRefused.
// - If the ranks are given different schedules, if is_training() of the
//   pipeline differs, or if the total weight is 0, all ranks throw
//   c10::ValueError. For schedules without backwards, as those of forward() and
//   evaluate(), both need to be equal within each replica only.
//
// Threads: any thread may call; calls run one after the other.
class DistributedPipelineImpl : public PipelineModule {
 public:
  // Takes this rank's layers of `module` and moves them to the device; the
  // others may be freed. Blocks until all ranks have called, and compares what
  // they were given.
  //
  // Training does not change the layers of other ranks in `module`, so they
  // keep their first values: after it, do not save or run `module` itself.
  // Save state_dict() of this pipeline on each rank (training/run_files.h).
  //
  // Throws c10::ValueError if the size of the world does not fit the balance
  // and data_parallel, or if a rank cannot do the direct transfers asked for;
  // PeerError if ranks differ in the model, the balance or another option. Also
  // throws as GPipeImpl's constructor does.
  DistributedPipelineImpl(torch::nn::Sequential module,
                          DistributedOptions options,
                          std::shared_ptr<World> world);
  // Does the same with a builder. All ranks must create the namespaces of skips
  // in the same order. The parameters of other ranks are unknown here. So
  // train_step() cannot refuse a layer that has captured one of them: it uses
  // its own copy.
  DistributedPipelineImpl(LayerBuilder build, DistributedOptions options,
                          std::shared_ptr<World> world);

  // train_step() and evaluate() of PipelineModule: all ranks call them, with
  // equal schedules and options. `input` is read only on the rank with the
  // first stage, `target` and `loss` only on the rank with the last one; other
  // ranks may pass anything. `input` must be on device() or on the CPU; from
  // there it is copied.
  //
  // The result has the losses on all ranks: `loss`, `weight` and `metrics` are
  // those of all replicas, `losses` are those of this replica. Outputs are on
  // the rank with the last stage. A timeline covers this rank only.
  //
  // Also throws c10::ValueError if a layer has captured a parameter of another
  // rank's layer, or if the schedule has a stage on another rank than
  // DistributedOptions::placement.

  // Returns the output of the last layer for `input` on the rank with the last
  // stage, nothing on other ranks. Runs in the current mode of the module and
  // without gradients; use train_step() for gradients. All ranks call it.
  template <typename Output = torch::Tensor, typename Input>
  std::optional<Output> forward(Input input) {
    const StepResult result =
        run_forward(internal::Batch::wrap(std::move(input)), internal::Batch(),
                    nullptr, TrainOptions());
    if (!result.outputs) return std::nullopt;
    return result.output<Output>();
  }

  // Does the same for a mini-batch that is already split; see
  // GPipeImpl::forward(). Ranks without the first stage may pass Microbatches
  // without parts.
  template <typename Output = torch::Tensor, typename Input>
  std::optional<Microbatches<Output>> forward(Microbatches<Input> input) {
    const StepResult result =
        run_forward(internal::Batch::wrap(std::move(input)), internal::Batch(),
                    nullptr, TrainOptions());
    if (!result.outputs) return std::nullopt;
    return result.output_parts<Output>();
  }

  std::vector<torch::Tensor> optimizer_parameters() const override;
  void share_parameters() override;
  // Clears the gradients of the parameters, and of their shards
  // (DistributedOptions::shard_optimizer).
  void zero_grad(bool set_to_none = true) override;

  // All ranks call these two. Throw PeerError if the world has failed. On
  // CPUs the norm has the bits of GPipe's clip_grad_norm_() on the whole model.
  // On accelerators its last bits may differ, because the norms of the
  // gradients are added up on the host. With
  // DistributedOptions::shard_optimizer they may differ on CPUs too, and
  // norm_type 0 is a c10::ValueError. If ranks pass other values,
  // clip_grad_norm_() throws c10::ValueError on all of them, and changes
  // nothing.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0) override;
  bool any(bool here) override;

  const std::vector<int64_t>& balance() const override {
    return options_.balance();
  }
  int64_t chunks() const override { return options_.chunks(); }
  Checkpoint checkpoint() const override { return options_.checkpoint(); }
  const torch::Device& device() const override { return device_; }
  // Returns the transport that DistributedOptions::transfers has led to: kHost
  // or kDirect.
  Transfers transfers() const { return transfers_; }
  // Returns why it is that transport, the same text on all ranks: for example
  // which rank has failed which part of the self-test.
  const std::string& transfers_reason() const { return transfers_reason_; }
  // Returns which rank has which stages, and the rank of this process.
  const internal::RankLayout& layout() const { return layout_; }

  std::optional<Failure> last_failure() const override;

  void pretty_print(std::ostream& stream) const override;

 private:
  void take(const torch::nn::Sequential& module);
  void build_own(const LayerBuilder& build_layers);
  // Completes the construction.
  // `layers`: all layers; those of other ranks have no module.
  // `foreign`: the known parameters of other ranks' layers.
  void build(std::vector<internal::Layer> layers,
             internal::ForeignParameters foreign);
  // Returns a reference that keeps the runner during a call. exit() in a loss
  // destroys a static pipeline while another thread is in its step.
  std::shared_ptr<internal::Runner> runner() const { return runner_; }
  int64_t count_microbatches(const internal::Batch& input) override;
  StepResult run_step(internal::StepArguments given) override;
  const std::vector<int>& rank_of_stage() const override {
    return layout_.rank_of_stage;
  }

  DistributedOptions options_;
  std::shared_ptr<internal::Communicator> world_;
  internal::RankLayout layout_;
  torch::Device device_ = torch::kCPU;
  Transfers transfers_ = Transfers::kHost;
  std::string transfers_reason_;
  std::shared_ptr<internal::Runner> runner_;
};
TORCH_MODULE(DistributedPipeline);

}  // namespace gpipe
