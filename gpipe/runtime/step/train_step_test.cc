#include "gpipe/runtime/step/train_step.h"

#include <ATen/record_function.h>
#include <c10/util/thread_name.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/step/testing.h"
#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/one_forward_one_backward.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::Pair;
using testing::Scale;
using torch::Tensor;

TEST(HasBackward, KnowsWholeBackwardsAndThoseInTwoParts) {
  EXPECT_TRUE(has_backward(fill_drain(2, 2)));
  EXPECT_TRUE(has_backward(zero_bubble_h1(2, 2)));
  EXPECT_FALSE(has_backward(forward_only(2, 2)));
}

TEST(CellsWith, ReturnsStageAndMicrobatch) {
  const Schedule schedule = {{{{0, ActionKind::kForward, 0},
                               {1, ActionKind::kRecompute, 3},
                               {0, ActionKind::kRecompute, 2}}}};
  std::vector<Partition> partitions(2);
  EXPECT_THAT(cells_with(schedule, ActionKind::kRecompute, partitions),
              ElementsAre(Pair(0, 2), Pair(1, 3)));
  partitions[0].remote = true;
  EXPECT_THAT(cells_with(schedule, ActionKind::kRecompute, partitions),
              ElementsAre(Pair(1, 3)));
}

TEST(CheckSchedule, ReturnsTheRankOfEachStageIfTheSizesFit) {
  EXPECT_THAT(check_schedule(fill_drain(3, 2), 3, 3, "Options"),
              ElementsAre(0, 1, 2));
  EXPECT_EQ(error_of([] { check_schedule(fill_drain(3, 2), 4, 2, "Options"); }),
            "c10::ValueError: the schedule has 3 stages on 3 ranks, but the "
            "pipeline has 4 partitions on 2 ranks; make a schedule of these "
            "sizes (see gpipe/schedule.h), or the pipeline with "
            "Options::stages_per_rank");
  EXPECT_THROW(check_schedule({{{}}}, 1, 1, "Options"), std::invalid_argument);
}

int recomputes(const Schedule& schedule) {
  int count = 0;
  for (const auto& rank : schedule.ranks) {
    for (const Action& each : rank)
      count += each.kind == ActionKind::kRecompute;
  }
  return count;
}

TEST(WithCheckpoint, AddsTheRecomputesOfTheMode) {
  const Schedule schedule = fill_drain(2, 3);
  EXPECT_EQ(recomputes(with_checkpoint(schedule, Checkpoint::kAlways)), 6);
  EXPECT_EQ(recomputes(with_checkpoint(schedule, Checkpoint::kExceptLast)), 4);
  EXPECT_EQ(with_checkpoint(schedule, Checkpoint::kNever).ranks,
            schedule.ranks);
  const Schedule own = with_checkpoint(schedule, Checkpoint::kExceptLast);
  EXPECT_EQ(with_checkpoint(own, Checkpoint::kAlways).ranks, own.ranks);
  const Schedule without = forward_only(2, 3);
  EXPECT_EQ(with_checkpoint(without, Checkpoint::kAlways).ranks, without.ranks);
}

Schedule schedule_of(int microbatch) {
  return {{{{0, ActionKind::kForward, microbatch}}}};
}

// Makes the text of a number, and counts.
struct Maker {
  ScheduleCache<std::string> cache;
  int made = 0;
  const std::string& get(int microbatch,
                         Checkpoint checkpoint = Checkpoint::kNever) {
    return cache.get(schedule_of(microbatch), checkpoint, [&] {
      return std::to_string(microbatch) + " " + std::to_string(++made);
    });
  }
};

TEST(ScheduleCache, MakesEachScheduleAndModeOnce) {
  Maker maker;
  const std::string& first = maker.get(5);
  EXPECT_EQ(first, "5 1");
  EXPECT_EQ(maker.get(5, Checkpoint::kAlways), "5 2");
  EXPECT_EQ(maker.get(6), "6 3");
  EXPECT_EQ(&maker.get(5), &first);
  EXPECT_EQ(maker.get(5, Checkpoint::kAlways), "5 2");
  EXPECT_EQ(maker.made, 3);
}

TEST(ScheduleCache, ABlockIsAnotherSchedule) {
  ScheduleCache<int> cache;
  Schedule fused = schedule_of(0);
  fused.ranks[0][0].fused_with_next = true;
  EXPECT_EQ(cache.get(schedule_of(0), Checkpoint::kNever, [] { return 1; }), 1);
  EXPECT_EQ(cache.get(fused, Checkpoint::kNever, [] { return 2; }), 2);
}

TEST(ScheduleCache, KeepsTheEightThatWereMadeLast) {
  Maker maker;
  for (int k = 0; k < 9; ++k) maker.get(k);
  EXPECT_EQ(maker.made, 9);
  for (int k = 1; k < 9; ++k) maker.get(k);
  EXPECT_EQ(maker.made, 9);
  EXPECT_EQ(maker.get(0), "0 10");
  EXPECT_EQ(maker.get(1), "1 11");  // was the oldest
}

TEST(ScheduleCache, KeepsNothingOfAMakerThatThrows) {
  ScheduleCache<int> cache;
  EXPECT_THROW(
      cache.get(schedule_of(0), Checkpoint::kNever, []() -> int { throw 42; }),
      int);
  EXPECT_EQ(cache.get(schedule_of(0), Checkpoint::kNever, [] { return 7; }), 7);
}

const LossFunction kSum = [](Value output, Value target) {
  return (output.tensors()[0] - target.tensors()[0]).sum();
};

// A model of two stages, x * 3 * 5, and a mini-batch of 5 rows.
struct TwoScales {
  Scale first{3}, second{5};
  Stages stages = testing::stages_of(
      {torch::nn::AnyModule(first), torch::nn::AnyModule(second)});
  Tensor input = torch::arange(1, 6, torch::kFloat).to(testing::device());
  Tensor target = torch::zeros({5});

  std::string error(TrainStep& step) {
    return error_of([&] {
      step.give_input(Value::wrap(input));
      step.give_target(Value::wrap(target), kSum);
    });
  }
};

TEST(TrainStep, ChangesNoGradBeforeAccumulateAndWeighsLossesByTheirRows) {
  TwoScales model;
  model.input.requires_grad_();
  const Schedule schedule = fill_drain(2, 2);
  TrainStep step(model.stages, schedule, TrainOptions().outputs(true));
  EXPECT_EQ(model.error(step), "");
  EXPECT_THAT(step.rows(), ElementsAre(3, 2));
  step.start();
  EXPECT_EQ(step.microbatches(), 2);
  EXPECT_TRUE(step.with_backward());
  EXPECT_THAT(step.weights(), ElementsAre(0.6, 0.4));
  testing::perform(schedule, step.pass());
  EXPECT_FALSE(step.drew());

  StepResult result = step.result();
  step.totals().write_to(result);
  ASSERT_EQ(result.losses.size(), 2u);
  EXPECT_EQ(result.losses[0].item<float>(), 15 * 6);
  EXPECT_EQ(result.losses[1].item<float>(), 15 * 9);
  EXPECT_FLOAT_EQ(result.loss.item<float>(), 0.6f * 90 + 0.4f * 135);
  EXPECT_TRUE(result.output().cpu().equal(model.input.detach().cpu() * 15));

  step.finish();
  const auto& grads = step.leaf_grads();
  ASSERT_EQ(grads.size(), 2u);
  EXPECT_TRUE(grads[0].tensor.is_same(model.first->weight));
  EXPECT_EQ(grads[0].places.front().first, 0);
  EXPECT_EQ(grads[1].places.front().first, 1);
  EXPECT_EQ(grads[0].places.size(), 1u);
  bool unlock = false;
  step.accumulate([&] {
    unlock = true;
    EXPECT_FALSE(model.first->weight.grad().defined());
  });
  EXPECT_TRUE(unlock);
  const float sum = 0.6f * 6 + 0.4f * 9;
  EXPECT_FLOAT_EQ(model.first->weight.grad().item<float>(), 5 * sum);
  EXPECT_FLOAT_EQ(model.second->weight.grad().item<float>(), 3 * sum);
  const Tensor grad = model.input.grad().cpu();
  EXPECT_FLOAT_EQ(grad[2].item<float>(), 15 * 0.6f);
  EXPECT_FLOAT_EQ(grad[3].item<float>(), 15 * 0.4f);
}

TEST(TrainStep, CallersMayChangeTheGradientsBeforeTheyAreAdded) {
  TwoScales model;
  const Schedule schedule = fill_drain(2, 5);
  TrainStep step(model.stages, schedule, {});
  EXPECT_EQ(model.error(step), "");
  step.start();
  testing::perform(schedule, step.pass());
  step.finish();
  for (auto& each : step.leaf_grads()) {
    each.grad = torch::full_like(each.grad, 7);
  }
  step.accumulate([] {});
  EXPECT_EQ(model.first->weight.grad().item<float>(), 7);
  EXPECT_EQ(model.second->weight.grad().item<float>(), 7);
}

TEST(TrainStep, WithoutATargetGivesTheOutputs) {
  TwoScales model;
  const Schedule schedule = forward_only(2, 5);
  TrainStep step(model.stages, schedule, {});
  step.give_input(Value::wrap(model.input));
  step.start(/*all_rows=*/10);
  EXPECT_FALSE(step.with_backward());
  EXPECT_THAT(step.weights(), ElementsAre(0.1, 0.1, 0.1, 0.1, 0.1));
  testing::perform(schedule, step.pass());
  const StepResult result = step.result();
  EXPECT_FALSE(result.loss.defined());
  EXPECT_TRUE(result.output().cpu().equal(model.input.cpu() * 15));
}

TEST(TrainStep, NeedsGradModeForBackwardsOnly) {
  TwoScales model;
  const torch::NoGradGuard no_grad;
  const Schedule with = fill_drain(2, 2), without = forward_only(2, 2);
  EXPECT_EQ(error_of([&] { TrainStep(model.stages, with, {}); }),
            "c10::Error: train_step() needs gradients enabled for a schedule "
            "with backwards: leave the NoGradGuard, or pass forward_only()");
  EXPECT_EQ(error_of([&] { TrainStep(model.stages, without, {}); }), "");
}

TEST(TrainStep, RefusesRowsThatDoNotFit) {
  TwoScales model;
  const Schedule six = fill_drain(2, 6), two = fill_drain(2, 2);
  TrainStep step(model.stages, six, {});
  EXPECT_EQ(model.error(step),
            "c10::ValueError: the schedule has 6 micro-batches, but the input "
            "has 5 rows; give at least one row for each micro-batch, or a "
            "schedule of fewer micro-batches");
  model.target = torch::zeros({6, 2});
  TrainStep other(model.stages, two, {});
  EXPECT_EQ(model.error(other),
            "c10::ValueError: the target must have a row for each of the "
            "input's 5 in dimension 0, but it has the sizes [6, 2]");
}

TEST(TrainStep, SplitsRowsThatDoNotDivideAsTensorSplitDoes) {
  TwoScales model;
  const Schedule four = fill_drain(2, 4);
  TrainStep step(model.stages, four, {});
  EXPECT_EQ(model.error(step), "");
  EXPECT_THAT(step.rows(), ElementsAre(2, 1, 1, 1));
}

const LossFunction kWeighted = [](Value output, Value target) {
  return WeightedLoss{(output.tensors()[0] * target.tensors()[0]).sum(),
                      target.tensors()[0].sum(),
                      {{"rows", torch::tensor(output.tensors()[0].size(0))}}};
};

TEST(TrainStep, DividesGradientsOnceByTheTotalWeight) {
  TwoScales model;
  model.input.requires_grad_();
  const Schedule schedule = fill_drain(2, 2);
  TrainStep step(model.stages, schedule, {});
  step.give_input(Value::wrap(model.input));
  // The first micro-batch has the rows 1, 2, 3; only row 2 counts.
  step.give_target(Value::wrap(torch::tensor({0.f, 1.f, 0.f, 2.f, 1.f})),
                   kWeighted);
  step.start();
  EXPECT_THAT(step.weights(), ElementsAre(1, 1));
  testing::perform(schedule, step.pass());
  StepResult result = step.result();
  step.totals().write_to(result);
  const float sum = 2 * 1 + 4 * 2 + 5 * 1;
  EXPECT_EQ(result.losses[0].item<float>(), 15 * 2);
  EXPECT_FLOAT_EQ(result.loss.item<float>(), 15 * sum / 4);
  EXPECT_EQ(*result.weight, 4);
  EXPECT_EQ(result.metric("rows").item<int64_t>(), 5);
  EXPECT_FALSE(result.outputs.has_value());  // not asked for
  step.finish();
  step.divide_gradients(step.totals().weight);
  step.accumulate([] {});
  EXPECT_FLOAT_EQ(model.first->weight.grad().item<float>(), 5 * sum / 4);
  EXPECT_FLOAT_EQ(model.second->weight.grad().item<float>(), 3 * sum / 4);
  EXPECT_TRUE(model.input.grad().cpu().equal(
      15 * torch::tensor({0.f, 1.f, 0.f, 2.f, 1.f}) / 4));
}

TEST(TrainStep, TakesPartsOfAnyShapeAndWeighsThemByTheRowsOfTheTarget) {
  TwoScales model;
  const Schedule schedule = fill_drain(2, 2);
  const auto parts = [](Tensor a, Tensor b) {
    return Batch(std::vector<Value>{Value::wrap(a), Value::wrap(b)});
  };
  const auto on_device = [](Tensor tensor) {
    return tensor.to(testing::device());
  };
  TrainStep step(model.stages, schedule, TrainOptions().outputs(true));
  step.give_input(parts(on_device(torch::ones({1, 3})),
                        on_device(torch::full({2, 4, 1}, 2.f))));
  const LossFunction mean = [](Value output, Value) {
    return output.tensors()[0].mean();
  };
  step.give_target(parts(torch::zeros({3}), torch::zeros({1})), mean);
  EXPECT_THAT(step.rows(), ElementsAre(3, 1));
  step.start();
  EXPECT_THAT(step.weights(), ElementsAre(0.75, 0.25));
  step.set_rows(0, 1, 3);  // the rows of the input do not count
  EXPECT_THAT(step.weights(), ElementsAre(0.75, 0.25));
  testing::perform(schedule, step.pass());
  StepResult result = step.result();
  step.totals().write_to(result);
  EXPECT_FLOAT_EQ(result.loss.item<float>(), 15 * (0.75f + 0.25f * 2));
  const auto outputs = result.output_parts().parts;
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_TRUE(outputs[1].cpu().equal(torch::full({2, 4, 1}, 30.f)));
}

TEST(TrainStep, RefusesPartsThatDoNotFit) {
  TwoScales model;
  const Schedule schedule = fill_drain(2, 2);
  const auto parts = [&](int64_t count) {
    return Batch(std::vector<Value>(count, Value::wrap(model.input)));
  };
  TrainStep step(model.stages, schedule, {});
  EXPECT_EQ(error_of([&] { step.give_input(parts(3)); }),
            "c10::ValueError: the schedule has 2 micro-batches, but the input "
            "has 3 parts; give one part for each micro-batch, or a schedule of "
            "3 micro-batches");
  step.give_input(parts(2));
  EXPECT_EQ(error_of([&] { step.give_target(parts(1), kSum); }),
            "c10::ValueError: the schedule has 2 micro-batches, but the target "
            "has 1 parts; give one part for each micro-batch, or a schedule of "
            "1 micro-batches");
  EXPECT_EQ(
      error_of([&] { step.give_target(Value::wrap(model.target), kSum); }),
      "c10::ValueError: the input is given as Microbatches, but the target is "
      "one value; give both in the same way");
}

TEST(TrainStep, RefusesAPartOfATargetWithoutRowsForAMeanOnly) {
  TwoScales model;
  const Schedule schedule = fill_drain(2, 3);
  const auto error_with = [&](const Value& part, const LossFunction& loss) {
    TrainStep step(model.stages, schedule, {});
    step.give_input(std::vector<Value>(3, Value::wrap(model.input)));
    const Value row = Value::wrap(torch::ones({1}));
    return error_of([&] {
      step.give_target(std::vector<Value>{row, part, row}, loss);
    });
  };
  const auto refused = [](const std::string& what) {
    return "c10::ValueError: part 1 of the target must have rows in dimension "
           "0, because the mean that the loss function returns counts by them, "
           "but it is " +
           what + "; keep dimension 0, or return a WeightedLoss";
  };
  const Value scalar = Value::wrap(torch::ones({}));
  EXPECT_EQ(error_with(scalar, kSum), refused("a tensor with the sizes ([])"));
  EXPECT_EQ(
      error_with(Value::wrap(std::vector<Tensor>{Tensor(), Tensor()}), kSum),
      refused("a vector of 2 tensors with the sizes ((undefined), "
              "(undefined))"));
  EXPECT_EQ(error_with(Value::wrap(torch::ones({0})), kSum), "");
  EXPECT_EQ(error_with(scalar, kWeighted), "");
}

TEST(TrainStep, OfTheLastRankRefusesATargetOfAnotherInput) {
  Scale last(5);
  Stages stages =
      testing::stages_of({torch::nn::AnyModule(), torch::nn::AnyModule(last)});
  const Schedule schedule = fill_drain(2, 2);
  TrainStep step(stages, schedule, {});
  step.give_target(Value::wrap(torch::zeros({5})), kSum);
  step.start();
  step.set_rows(0, 3, 5);
  EXPECT_EQ(
      error_of([&] { step.set_rows(1, 3, 6); }),
      "c10::ValueError: micro-batch 1 of the input has 3 rows, of 6, but "
      "the target's has 2; on the last rank, pass the target that belongs "
      "to the input of the first rank");
  step.set_rows(1, 2, 5);
  EXPECT_THAT(step.weights(), ElementsAre(0.6, 0.4));
}

// A pipeline without other ranks.
struct Alone : StepPeers {
  const Schedule& checked_schedule(const Schedule&, Checkpoint) override {
    throw std::logic_error("not called");
  }
};

// A step of one stage, x * 3, over the rows 1 and 2, whose loss has the weight
// of its target.
struct OneStage {
  testing::Scale scale{3};
  Stages stages = testing::stages_of({torch::nn::AnyModule(scale)});
  Schedule schedule = fill_drain(1, 1);
  TrainStep step{stages, schedule, TrainOptions()};
  LossFunction loss = [](Value output, Value target) {
    return WeightedLoss{
        output.tensors()[0].sum(), target.tensors()[0].sum(), {}};
  };

  explicit OneStage(double weight) {
    const auto on_device = [](std::vector<double> rows) {
      return Value::wrap(
          torch::tensor(rows, torch::kFloat).to(testing::device()));
    };
    step.give_input(on_device({1, 2}));
    step.give_target(on_device({0, weight}), loss);
    step.start();
    testing::perform(schedule, step.pass());
    step.result();
  }
};

TEST(StepPeers, WithoutOtherRanksPreparesAndKnowsNoOtherRows) {
  OneStage model(4);
  int prepared = 0;
  Alone alone;
  EXPECT_FALSE(alone
                   .begin({Batch(), Batch(), &model.loss, &model.schedule,
                           [] { return StepMode(); }, TrainOptions(), nullptr},
                          StepMode(),
                          [&]() -> TrainStep& {
                            ++prepared;
                            return model.step;
                          })
                   .has_value());
  EXPECT_EQ(prepared, 1);
  EXPECT_EQ(alone.remote(), nullptr);
  EXPECT_EQ(alone.before(7), 0);
}

TEST(StepPeers, WithoutOtherRanksEndWithTheTotalsOfTheStep) {
  OneStage model(4);
  StepResult result;
  const LossTotals totals = Alone().end(model.step, result);
  EXPECT_EQ(totals.sum.item<float>(), 9);
  EXPECT_EQ(totals.weight, 4);
  EXPECT_TRUE(result.losses.empty());
}

TEST(StepPeers, WithoutOtherRanksEndChecksTheTotals) {
  OneStage model(0);
  StepResult result;
  EXPECT_THAT(error_of([&] { Alone().end(model.step, result); }),
              ::testing::StartsWith(
                  "c10::ValueError: the total of WeightedLoss::weight over all "
                  "micro-batches and replicas is 0,"));
}

// Peers whose calls are listed. They throw in the call `throws`, and report
// totals of `replicas` equal replicas.
class Peers : public StepPeers {
 public:
  explicit Peers(Executor& executor) : executor_(executor) {}

  std::vector<std::string> calls;
  std::string throws;
  int replicas = 1;

  void open() override { add("open"); }
  std::optional<int64_t> begin(
      const StepArguments&, const StepMode&,
      const std::function<TrainStep&()>& prepare) override {
    add("begin");
    const TrainStep& step = prepare();
    EXPECT_EQ(step.microbatches(), 2);
    return std::nullopt;
  }
  const Schedule& checked_schedule(const Schedule& schedule,
                                   Checkpoint checkpoint) override {
    add("check schedule");
    schedule_ = internal::with_checkpoint(schedule, checkpoint);
    return schedule_;
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
    if (!locked) {
      EXPECT_TRUE(executor_.enter().owns_lock());
    }
  }

 private:
  void add(const std::string& call) {
    calls.push_back(call);
    if (call == throws) throw std::runtime_error(call);
  }
  Executor& executor_;
  Schedule schedule_;
};

// x * 3 * 5 on two stages, and a mini-batch of 4 rows.
struct Trained {
  Scale first{3}, second{5};
  Stages stages = testing::stages_of(
      {torch::nn::AnyModule(first), torch::nn::AnyModule(second)});
  Executor executor{testing::devices(2), 1, /*one_at_a_time=*/false};
  Peers peers{executor};
  Schedule schedule = fill_drain(2, 2);
  Batch input = Value::wrap(torch::ones({4}).to(testing::device()));
  Batch target = Value::wrap(torch::ones({4}));
  TrainOptions options{};
  LossFunction loss = [](Value output, Value target) {
    return WeightedLoss{
        output.tensors()[0].sum(), target.tensors()[0].sum(), {}};
  };

  StepResult train() {
    return internal::train(
        stages, executor,
        {input, target, &loss, &schedule, [] { return StepMode(); }, options,
         [this] { peers.calls.push_back("check"); }},
        peers);
  }
};

TEST(Train, CallsThePeersInOrderAndDividesByTheWeightOfAll) {
  Trained model;
  model.peers.replicas = 2;
  const StepResult result = model.train();
  EXPECT_THAT(model.peers.calls,
              ElementsAre("open", "begin", "check", "check schedule", "connect",
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
              ElementsAre("open", "begin", "check", "check schedule",
                          "connect, recording", "disconnect", "add up", "end"));
  EXPECT_FLOAT_EQ(result.loss.item<float>(), 15);
  EXPECT_TRUE(result.timeline);
  EXPECT_FALSE(model.first->weight.grad().defined());
}

TEST(Train, AnExceptionOfPeersEndsTheStepWithoutGradients) {
  for (const std::string call :
       {"begin", "check schedule", "connect", "disconnect", "add up", "end",
        "confirm division"}) {
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

// Called before this thread runs _foreach_copy_, which writes statistics.
thread_local std::function<void()> before_write;

TEST(Train, TakesStatisticsBackUnderTheLockIfAHookThrows) {
  if (!has_streams(testing::device())) {
    GTEST_SKIP() << "without accelerators a thread cannot ask for the lock "
                    "without waiting";
  }
  torch::nn::BatchNorm1d norm(1);
  Trained model{.stages = testing::stages_of({torch::nn::AnyModule(norm),
                                              torch::nn::AnyModule(Scale(5))}),
                .input = Value::wrap(
                    torch::arange(4.0).view({4, 1}).to(testing::device()))};
  defer_norms(model.stages.partitions);
  norm->weight.register_hook(
      [](const Tensor&) -> Tensor { throw std::runtime_error("hook"); });
  std::vector<bool> locked;
  before_write = [&] {
    std::thread([&] {
      // A thread for which Executor::enter() throws if a backward has the lock.
      c10::setThreadName("pt_autograd_0");
      locked.push_back(error_of([&] { model.executor.enter(); }) != "");
    }).join();
  };
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function)
                                     -> std::unique_ptr<at::ObserverContext> {
        if (before_write &&
            std::string(function.name()) == "aten::_foreach_copy_") {
          before_write();
        }
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  EXPECT_EQ(error_of([&] { model.train(); }), "std::runtime_error: hook");
  at::removeCallback(handle);
  before_write = nullptr;
  EXPECT_GE(locked.size(), 2u);  // written, and taken back
  EXPECT_THAT(locked, ::testing::Each(true));
  EXPECT_EQ(norm->running_mean.item<float>(), 0);
}

}  // namespace
}  // namespace gpipe::internal
