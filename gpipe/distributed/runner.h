// Runs this rank's part of a step.
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
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/carrier.h"
#include "gpipe/distributed/foreign_parameters.h"
#include "gpipe/distributed/layout.h"
#include "gpipe/distributed/link.h"
#include "gpipe/distributed/replica_sums.h"
#include "gpipe/distributed/route.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "gpipe/runtime/border.h"
#include "gpipe/runtime/checkpoint.h"
#include "gpipe/runtime/executor.h"
#include "gpipe/runtime/failure.h"
#include "gpipe/runtime/partition.h"
#include "gpipe/runtime/recent_plans.h"
#include "gpipe/runtime/recording.h"
#include "gpipe/runtime/step.h"
#include "gpipe/runtime/train.h"
#include "gpipe/runtime/train_step.h"
#include "gpipe/runtime/value.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

// The counterpart of runtime/pipeline.h where each rank is a process. Cells,
// schedules and modes are the same; what leaves a rank goes to an Outlet, and
// what comes from an Inlet.
//
// Threads: any; steps are served one after the other.
class Runner : private Border {
 public:
  // `partitions`: all of them, those of other ranks `elsewhere`. `transfers`:
  // as agreed. `foreign`: of the layers elsewhere, as far as they are known.
  Runner(std::shared_ptr<World> world, std::vector<Partition> partitions,
         RankLayout layout, c10::Device device, int threads,
         Transfers transfers, ForeignParameters foreign);
  ~Runner() override;

  // `input`, `target`: looked at where the first and the last stage are.
  // `loss`: null for outputs alone, with a schedule without backwards. The
  // result has the losses on all ranks.
  StepResult step(const Value& input, const Value& target,
                  const LossFunction* loss, const Schedule& schedule,
                  Checkpoint checkpoint, const TrainOptions& options);

  // What `number` gives on the rank with the first stage, which alone calls it,
  // on all ranks of the pipeline.
  int64_t from_first(const std::function<int64_t()>& number);

  // Whether it is true on any rank of the world.
  bool any(bool here);

  // Over the ranks of the pipeline; see norms.h.
  double clip_grad_norm(
      const std::vector<std::pair<int64_t, at::Tensor>>& parameters,
      double max_norm, double norm_type);

  std::optional<Failure> last_failure() const;

 private:
  // A schedule and what follows from it for this rank.
  struct TrainPlan {
    uint32_t checksum;
    Plan whole, mine;
    std::map<int, std::vector<Bundle>> incoming;  // by rank
  };
  TrainPlan make_plan(const Schedule& schedule, Checkpoint checkpoint) const;
  StepResult run(const Value& input, const Value& target,
                 const LossFunction* loss, const TrainPlan& plan,
                 const TrainOptions& options,
                 const std::function<void()>& let_go);
  void start(TrainStep& step);
  void receive(const TrainPlan& plan);
  void arrive(const Bundle& bundle, const Message& message,
              std::vector<at::Tensor> tensors);
  // Into the recording, if there is one: what has just come or gone.
  void record(const Passage& passage, const Message& message,
              Recording::Time start);
  // See widths_; 0 before anything has gone.
  std::size_t width_of(int64_t stage, int64_t microbatch);
  void flush();
  // Returns once all ranks have done their part, with their losses.
  void end_together(const TrainStep& step, StepResult& result);
  // Sums over the replicas: of parameters while the step runs, begun here ...
  void begin_sums(const TrainStep& step);
  // ... and of all that is left.
  void add_up(TrainStep& step);
  MessageId id_of(const Passage& passage) const;
  void send(std::vector<Outgoing> all, const Moment& made) override;
  void check() override { world_->check(); }
  void waits_for(int64_t stage) override;
  bool takes_gradients() const override { return sums_ != nullptr; }
  void complete(int64_t stage, const at::Tensor& leaf, at::Tensor& grad,
                const Moment& made) override;
  void complete(int64_t stage) override { sums_->close(stage); }

  const std::shared_ptr<World> world_;
  const RankLayout layout_;
  const Tags tags_;
  const ForeignParameters foreign_;
  std::mutex running_;
  Stages stages_;
  RecentPlans<TrainPlan> plans_;

  // Of the step that runs. What comes from other ranks is written by an inlet
  // before it delivers what the reader waits for.
  uint64_t number_ = 0;
  uint32_t checksum_ = 0;
  TrainStep* step_ = nullptr;
  Recording* recording_ = nullptr;  // if asked for
  std::atomic<uint64_t> seed_{0};
  std::vector<int64_t> rows_;  // by micro-batch
  std::atomic<int64_t> all_rows_{0};
  // How many tensors have gone to the next stage, by stage and micro-batch: as
  // many gradients are to come back.
  std::mutex widths_mutex_;
  std::map<std::pair<int64_t, int64_t>, std::size_t> widths_;

  mutable std::mutex failure_mutex_;
  std::optional<Failure> failure_;

  Executor executor_;
  int callback_ = -1;
  // Of the pipeline and of the sums, which go on at the same time.
  const std::unique_ptr<Carrier> carrier_, sums_carrier_;
  // By rank of the pipeline; last: their threads end first.
  std::map<int, std::unique_ptr<Outlet>> outlets_;
  std::map<int, std::unique_ptr<Inlet>> inlets_;
  std::unique_ptr<ReplicaSums> sums_;  // if there are replicas
};

}  // namespace gpipe
