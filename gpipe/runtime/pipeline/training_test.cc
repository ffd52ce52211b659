#include "gpipe/runtime/pipeline/training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/runtime/pipeline/train_schedule.h"
#include "gpipe/runtime/step/small_stages_testing.h"
#include "gpipe/schedule/generators/fill_drain.h"
#include "gpipe/schedule/generators/forward_only.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::Scale;
using torch::Tensor;

// Peers whose calls are listed. They throw in the call `throws`, and report
// totals of `replicas` equal replicas.
class Peers : public StepPeers {
 public:
  explicit Peers(StageWorkers& workers) : workers_(workers) {}

  std::vector<std::string> calls;
  std::string throws;
  int replicas = 1;

  void open() override { add("open"); }
  std::optional<int64_t> begin(
      const StepArguments&,
      const std::function<TrainStep&()>& prepare) override {
    add("begin");
    const TrainStep& step = prepare();
    EXPECT_EQ(step.microbatches(), 2);
    return std::nullopt;
  }
  StepPlan plan(const Schedule& schedule, Checkpoint checkpoint) override {
    add("plan");
    plan_ =
        std::make_unique<Plan>(internal::with_checkpoint(schedule, checkpoint));
    return {plan_->schedule, *plan_};
  }
  void connect(TrainStep&, Recording* recording) override {
    add(recording ? "connect, recording" : "connect");
  }
  void disconnect() override { add("disconnect"); }
  void add_up(TrainStep& step) override {
    add("add up");
    if (!step.with_backward()) return;
    for (auto& each : step.leaf_grads()) each.grad = each.grad * replicas;
  }
  LossTotals end(const TrainStep& step, StepResult&) override {
    add("end");
    LossTotals totals;
    for (int k = 0; k < replicas; ++k) totals.add(step.totals());
    return totals;
  }
  void confirm_division() override { add("confirm division"); }
  void fail(bool locked) override {
    calls.emplace_back(locked ? "fail, locked" : "fail");
    // Without the lock this would be a deadlock if it were still held.
    if (!locked) EXPECT_TRUE(workers_.enter().owns_lock());
  }

 private:
  void add(const std::string& call) {
    calls.push_back(call);
    if (call == throws) throw std::runtime_error(call);
  }
  StageWorkers& workers_;
  std::unique_ptr<Plan> plan_;
};

// x * 3 * 5 on two stages, and a mini-batch of 4 rows.
struct Trained {
  Scale first{3}, second{5};
  StageWorkers workers{testing::stages_of({torch::nn::AnyModule(first),
                                           torch::nn::AnyModule(second)})
                           .partitions,
                       Unsplit(),
                       {0, 1},
                       testing::devices(2),
                       1,
                       false};
  Peers peers{workers};
  Schedule schedule = fill_drain(2, 2);
  Batch input = Value::wrap(torch::ones({4}).to(testing::device()));
  Batch target = Value::wrap(torch::ones({4}));
  TrainOptions options;
  LossFunction loss = [](Value output, Value target) {
    return WeightedLoss{
        output.tensors()[0].sum(), target.tensors()[0].sum(), {}};
  };

  StepResult train() {
    return internal::train(
        workers,
        {input, target, &loss, schedule, Checkpoint::kNever, options,
         [this] { peers.calls.push_back("check"); }},
        peers);
  }
};

TEST(Train, CallsThePeersInOrderAndDividesByTheWeightOfAll) {
  Trained model;
  model.peers.replicas = 2;
  const StepResult result = model.train();
  EXPECT_THAT(model.peers.calls,
              ElementsAre("open", "begin", "check", "plan", "connect",
                          "disconnect", "add up", "end", "confirm division"));
  EXPECT_EQ(*result.weight, 8);
  EXPECT_FLOAT_EQ(result.loss.item<float>(), 15);
  // The sum over two replicas of 4 rows, divided by 8.
  EXPECT_FLOAT_EQ(model.first->weight.grad().item<float>(), 5);
  EXPECT_FLOAT_EQ(model.second->weight.grad().item<float>(), 3);
}

TEST(Train, WithoutBackwardsDividesNothing) {
  Trained model;
  model.schedule = forward_only(2, 2);
  model.options.timeline(true);
  const StepResult result = model.train();
  EXPECT_THAT(model.peers.calls,
              ElementsAre("open", "begin", "check", "plan",
                          "connect, recording", "disconnect", "add up", "end"));
  EXPECT_FLOAT_EQ(result.loss.item<float>(), 15);
  EXPECT_TRUE(result.timeline);
  EXPECT_FALSE(model.first->weight.grad().defined());
}

TEST(Train, AnExceptionOfPeersEndsTheStepWithoutGradients) {
  for (const std::string call : {"begin", "plan", "connect", "disconnect",
                                 "add up", "end", "confirm division"}) {
    SCOPED_TRACE(call);
    Trained model;
    model.peers.throws = call;
    EXPECT_EQ(error_of([&] { model.train(); }), "std::runtime_error: " + call);
    EXPECT_EQ(model.peers.calls.back(), "fail, locked");
    EXPECT_FALSE(model.first->weight.grad().defined());
    model.peers.throws.clear();
    model.train();
    EXPECT_FLOAT_EQ(model.first->weight.grad().item<float>(), 5);
  }
}

TEST(Train, AHookMayThrowAfterTheLockIsReleased) {
  Trained model;
  model.first->weight.register_hook(
      [](const Tensor&) -> Tensor { throw std::runtime_error("hook"); });
  EXPECT_EQ(error_of([&] { model.train(); }), "std::runtime_error: hook");
  EXPECT_EQ(model.peers.calls.back(), "fail");
}

}  // namespace
}  // namespace gpipe::internal
