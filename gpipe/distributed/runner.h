// This rank's part of a training step.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/distributed/beginning.h"
#include "gpipe/distributed/channel/message.h"
#include "gpipe/distributed/channel/receiver.h"
#include "gpipe/distributed/channel/sender.h"
#include "gpipe/distributed/foreign_parameters.h"
#include "gpipe/distributed/layout.h"
#include "gpipe/distributed/replicas/parameter_shards.h"
#include "gpipe/distributed/replicas/replica_sums.h"
#include "gpipe/distributed/route.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world/communicator.h"
#include "gpipe/distributed/world/transport.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/run/failure.h"
#include "gpipe/runtime/run/recording.h"
#include "gpipe/runtime/step/loss_totals.h"
#include "gpipe/runtime/step/recent_plans.h"
#include "gpipe/runtime/step/remote_stages.h"
#include "gpipe/runtime/step/stage_workers.h"
#include "gpipe/runtime/step/step_peers.h"
#include "gpipe/runtime/step/train.h"
#include "gpipe/runtime/step/train_step.h"
#include "gpipe/schedule/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// The counterpart of runtime/step/pipeline.h where each rank is a process.
// Cells, schedules and checkpoint modes are the same. Activations and gradients
// for other ranks go to a Sender; those from other ranks come from a
// Receiver.
//
// An argument that is wrong on one rank must not end the world. So the ranks
// tell each other what they were given before a step begins. If one refuses its
// arguments, or if they do not fit together, all ranks throw, no message has
// been sent, and the next step works.
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
  Runner(std::shared_ptr<Communicator> world, std::vector<Partition> partitions,
         RankLayout layout, c10::Device device, int threads,
         Transfers transfers, ForeignParameters foreign, Unsplit unsplit,
         bool shard_optimizer);
  ~Runner() override;

  // Runs one step; all ranks call it. The result has the losses on all ranks.
  // Errors: see DistributedPipelineImpl::train_step().
  StepResult step(const StepArguments& given);

  // Returns, on all ranks of the pipeline, the result of `number` on the rank
  // with the first stage. Only that rank calls `number`. Throws PeerError if
  // the world has failed.
  int64_t from_first(const std::function<int64_t()>& number);

  // Returns whether `here` is true on any rank of the world. Throws PeerError
  // if the world has failed.
  bool any(bool here);

  // Clips the gradients of all ranks of the pipeline, see norms.h.
  // `parameters`: this rank's, each with the index of its layer.
  double clip_grad_norm(
      const std::vector<std::pair<int64_t, at::Tensor>>& parameters,
      double max_norm, double norm_type);

  // Returns the shards of this rank's parameters that its replica owns; nullopt
  // without sharded optimizers.
  std::optional<std::vector<at::Tensor>> own_shards();
  // Brings the other replicas' shards here, see ParameterShards::spread(). Does
  // nothing without sharded optimizers.
  void share_parameters();

  // Returns where this rank's exception in the last step came from, if it had
  // one.
  std::optional<Failure> last_failure() const {
    return workers_.last_failure();
  }

 private:
  // Returns the ranks with which this one exchanges messages, whatever the
  // schedule.
  std::vector<int> peers() const;

  // A schedule, and what this rank derives from it.
  struct TrainPlan {
    // A checksum of the schedule's text.
    uint32_t checksum;
    // The actions of all ranks, and of this one.
    Plan whole, mine;
    std::map<int, std::vector<MessageEdges>> incoming;  // by sending rank
  };
  TrainPlan make_plan(const Schedule& schedule, Checkpoint checkpoint) const;

  // StepPeers, see there.
  void open() override;
  std::optional<int64_t> begin(
      const StepArguments& given,
      const std::function<TrainStep&()>& prepare) override;
  StepPlan plan(const Schedule& schedule, Checkpoint checkpoint) override;
  RemoteStages* remote() override { return this; }
  int64_t before(int64_t microbatches) const override {
    return layout_.replica * microbatches;
  }
  void connect(TrainStep& step, Recording* recording) override;
  // Blocks until all messages have left and arrived, or the world has failed.
  void disconnect() override;
  void add_up(TrainStep& step) override;
  LossTotals end(const TrainStep& step, StepResult& result) override;
  void confirm_division() override;
  void fail(bool locked) override;

  // Blocks until no other call runs, and returns the lock. Throws PeerError if
  // the world has failed.
  std::unique_lock<std::mutex> enter();
  // Returns what the other ranks must know before the step.
  Beginning beginning_of(const TrainStep& step,
                         const StepArguments& given) const;
  // Blocks until all ranks have called, and returns what they were given, by
  // rank of the world. Throws on all ranks, with agreed_ set, if a rank has
  // refused the step, or if schedules or rows differ.
  // `refusal`: null unless this rank refuses.
  std::vector<Beginning> begin_together(const Beginning& mine,
                                        const std::exception_ptr& refusal);
  // Throws `own`, or, if it is null, `misfit` as a PeerError with
  // Fault::kRefused. All ranks call it. Sets agreed_.
  [[noreturn]] void throw_together(const std::exception_ptr& own,
                                   const Misfit& misfit);
  // Posts the messages of the step, by sending rank.
  void receive();
  // Delivers the tensors of a message to the step. Runs on a Receiver's
  // thread. Throws c10::Error if they do not fit.
  void arrive(const MessageEdges& edges, const Message& message,
              std::vector<at::Tensor> tensors, const Event& ready);
  // Adds a message to the recording, if there is one, when it has arrived or
  // left.
  void record(const StageEdge& edge, const Message& message,
              Recording::Time start);
  // Returns the entry of `widths_`; 0 if nothing has been sent.
  std::size_t width_of(int64_t stage, int64_t microbatch);
  // Blocks until all ranks know the exception that they are going to throw. A
  // program that ends with it must not look like a failure to a rank that does
  // not know it yet.
  void meet_before_throwing();
  // Returns the parameters of all layers of this rank, each once.
  std::vector<at::Tensor> own_parameters() const;
  // Begins to add up gradients over the replicas while the step runs.
  void begin_sums(const TrainStep& step);
  MessageId id_of(const StageEdge& edge) const;
  // Returns the sender to a rank of the pipeline; made on first use.
  Sender& sender_to(int rank);

  // RemoteStages, see there.
  void send(std::vector<StageOutput> all, const Event& made) override;
  void check() override { world_->check(); }
  void waits_for(int64_t stage) override;
  bool takes_gradients() const override { return sums_ != nullptr; }
  void complete(int64_t stage, const at::Tensor& leaf, at::Tensor& grad,
                const Event& made) override;
  void complete(int64_t stage) override { sums_->close(stage); }

  const std::shared_ptr<Communicator> world_;
  const RankLayout layout_;
  const Tags tags_;
  const ForeignParameters foreign_;
  RecentPlans<TrainPlan> plans_;

  // State of the running step. A Receiver's thread writes values from other
  // ranks before it delivers the tensors that the reader waits for.
  uint64_t number_ = 0;
  const TrainPlan* plan_ = nullptr;
  TrainStep* step_ = nullptr;       // null unless connected
  Recording* recording_ = nullptr;  // null unless asked for
  // Whether all ranks throw the same exception or a PeerError because of it, so
  // that the world has not failed.
  bool agreed_ = false;
  std::atomic<uint64_t> seed_{0};
  std::vector<int64_t> rows_;  // by micro-batch
  std::atomic<int64_t> all_rows_{0};
  // How many tensors were sent to the next stage, by stage and micro-batch. As
  // many gradients must come back.
  std::mutex widths_mutex_;
  std::map<std::pair<int64_t, int64_t>, std::size_t> widths_;

  StageWorkers workers_;
  // The number of the callback for failures of the world.
  int callback_ = -1;
  // Transports of the pipeline and of the sums, which run at the same time.
  const std::shared_ptr<Transport> transport_, sums_transport_;
  // By rank of the pipeline. Declared last: their threads must end first.
  std::map<int, std::unique_ptr<Sender>> senders_;
  std::map<int, std::unique_ptr<Receiver>> receivers_;
  std::unique_ptr<ReplicaSums> sums_;      // null without replicas
  std::optional<ParameterShards> shards_;  // none without sharded optimizers
};

}  // namespace gpipe::internal
