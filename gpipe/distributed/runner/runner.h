// This rank's part of a training step.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/distributed/runner/agreement.h"
#include "gpipe/distributed/runner/layout.h"
#include "gpipe/distributed/runner/messages.h"
#include "gpipe/distributed/runner/replica_sums.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world/communicator.h"
#include "gpipe/failure.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/run/recording.h"
#include "gpipe/runtime/step/loss_totals.h"
#include "gpipe/runtime/step/passes.h"
#include "gpipe/runtime/step/step.h"
#include "gpipe/runtime/step/train_step.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/train.h"

namespace gpipe::internal {

// While it exists, no other TensorImpl gets the same address.
using WeakTensor =
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// A set of parameters that belong to other ranks. Holds weak references: it
// does not keep the parameters alive.
//
// Not thread-safe.
class ForeignParameters {
 public:
  // Adds a parameter of a layer on rank `rank` of the pipeline.
  // `name`: its name in the Sequential ("3.weight").
  void add(std::string name, int rank, const at::Tensor& parameter);

  // Throws c10::ValueError if one of the parameters is among `leaves`, the
  // leaves of the autograd graphs of this rank. A layer of this rank has
  // captured it then, so that two ranks have a copy each, with different parts
  // of the gradient.
  void check(const std::vector<SharedLeaf>& leaves) const;

 private:
  struct Foreign {
    std::string name;
    int rank;
    WeakTensor tensor;
  };
  std::unordered_map<const c10::TensorImpl*, Foreign> all_;
};

// The counterpart of runtime/step/pipeline.h where each rank is a process.
// Cells, schedules and checkpoint modes are the same. StepMessages carries
// activations and gradients to and from other ranks, ReplicaSums adds up over
// replicas, and by a StepAgreement all ranks begin and end a step together.
//
// Threads: any thread may call; calls run one after the other.
class Runner : private StepPeers, private RemoteStages {
 public:
  // `partitions`: all partitions; those of other ranks have `remote` set.
  // `threads`: intra-op threads of the worker.
  // `transfers`: the result of agree_on_transfers().
  // `foreign`: the known parameters of layers on other ranks.
  // `unsplit`: elements of the input that every micro-batch gets whole.
  // `shard_optimizer`: whether each replica updates a part of the parameters.
  // `collective_sums`: see DistributedOptions.
  // All ranks call it. Blocks until all have.
  Runner(std::shared_ptr<Communicator> world, std::vector<Partition> partitions,
         RankLayout layout, c10::Device device, int threads,
         Transfers transfers, ForeignParameters foreign, Unsplit unsplit,
         bool shard_optimizer, bool collective_sums);
  ~Runner() override;

  // Runs one step; all ranks call it. The result has the losses on all ranks.
  // Errors: see DistributedPipelineImpl::train_step().
  StepResult step(const StepArguments& given);

  // Returns, on all ranks of the pipeline, the result of `number` on the rank
  // with the first stage. Only that rank calls `number`. Throws PeerError if
  // the world has failed. Threads: called by StepArguments::mode.
  int64_t from_first(const std::function<int64_t()>& number);

  // Returns whether `here` is true on any rank of the world. Throws PeerError
  // if the world has failed.
  bool any(bool here);

  // Clips the gradients of all ranks of the pipeline, see norms.h.
  double clip_grad_norm(double max_norm, double norm_type);

  // Returns the shards of this rank's parameters that its replica owns; nullopt
  // without sharded optimizers.
  std::optional<std::vector<at::Tensor>> own_shards();
  // Brings the other replicas' shards here, see ParameterShards::spread(). Does
  // nothing without sharded optimizers.
  void share_parameters();
  // Clears the gradients of the shards, if there are any.
  void zero_shard_grads(bool set_to_none);

  // Returns where this rank's exception in the last step came from, if it had
  // one.
  std::optional<Failure> last_failure() const {
    return executor_.last_failure();
  }

 private:
  // A parameter or a buffer of this rank's layers.
  struct OwnTensor {
    std::string name;              // in the Sequential: "3.weight"
    int64_t stage = 0, layer = 0;  // the first ones that have it
    bool is_shared = false;        // whether several stages have it
    at::Tensor tensor;
  };
  // Returns the parameters of this rank's layers, or the buffers, each once, in
  // the order of the modules. Layers may register more of them in a forward.
  std::vector<OwnTensor> own_tensors(bool buffers = false) const;
  // Makes shards of the parameters that have none yet, and drops those of
  // parameters that are not there any more. `parameters`: all of this rank.
  void add_shards(const std::vector<OwnTensor>& parameters);
  // Gives the tensors the values that they have in replica 0.
  void copy_first(const std::vector<OwnTensor>& parameters,
                  const std::vector<OwnTensor>& buffers = {});

  // Returns the ranks with which this one exchanges messages, whatever the
  // schedule.
  std::vector<int> peers() const;

  // A schedule as it is run, and what this rank derives from it.
  struct Prepared {
    Schedule schedule;
    IncomingMessages incoming;
  };
  Prepared prepare(const Schedule& schedule, Checkpoint checkpoint) const;
  // Returns what the other ranks must know before the step.
  StartReport start_report(const TrainStep& step, const StepArguments& given,
                           const StepMode& mode) const;
  // Blocks until no other call runs, and returns the lock. Throws PeerError if
  // the world has failed.
  std::unique_lock<StepMutex> enter();
  // Begins to add up gradients over the replicas while the step runs.
  void begin_sums(const TrainStep& step);

  // StepPeers, see there.
  void open() override;
  std::optional<int64_t> begin(
      const StepArguments& given, const StepMode& mode,
      const std::function<TrainStep&()>& prepare) override;
  const Schedule& checked_schedule(const Schedule& schedule,
                                   Checkpoint checkpoint) override;
  RemoteStages* remote() override { return this; }
  int64_t before(int64_t microbatches) const override {
    return layout_.replica * microbatches;
  }
  void connect(TrainStep& step, Recording* recording) override;
  void disconnect() override { messages_.disconnect(); }
  void add_up(TrainStep& step) override;
  LossTotals end(const TrainStep& step, StepResult& result) override {
    return agreement_.end(step, result);
  }
  void confirm_division() override;
  void fail(bool locked) override;

  // RemoteStages, see there.
  void send(std::vector<StageOutput> all, const Event& made) override {
    messages_.send(std::move(all), made);
  }
  void check() override { world_->check(); }
  void waits_for(int64_t stage) override;
  bool takes_gradients() const override { return sums_.has_value(); }
  void complete(int64_t, const at::Tensor& leaf, at::Tensor& grad,
                const Event& made) override {
    sums_->give(leaf, grad, made);
  }
  void complete(int64_t /*stage*/) override { sums_->close(); }

  const std::shared_ptr<Communicator> world_;
  const RankLayout layout_;
  const Tags tags_;
  const ForeignParameters foreign_;
  ScheduleCache<Prepared> prepared_schedules_;
  const Prepared* prepared_ = nullptr;  // of the running step
  Recording* recording_ = nullptr;      // of the running step, if it has one
  StepAgreement agreement_;
  Stages stages_;
  Executor executor_;
  // The number of the callback for failures of the world.
  int callback_ = -1;
  StepMessages messages_;
  std::shared_ptr<Transport> sums_transport_;
  SumMethod sum_method_ = SumMethod::kMemberOrder;
  std::optional<ReplicaSums> sums_;        // none without replicas
  std::optional<ParameterShards> shards_;  // none without sharded optimizers
  // The parameters of this rank when all replicas last got those of replica 0.
  std::vector<WeakTensor> copied_;
  // Whether they get them in the running step.
  bool copies_ = false;
};

}  // namespace gpipe::internal
