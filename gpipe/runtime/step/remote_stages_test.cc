// Tests which gradients a RemoteStages receives, and when.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/step/passes.h"
#include "gpipe/runtime/step/testing.h"
#include "gpipe/runtime/step/train_step.h"
#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/one_forward_one_backward.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/layers.h"

namespace gpipe::internal {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

// The events of a step, in order.
class Log {
 public:
  void add(const std::string& event) {
    std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(event);
  }
  std::vector<std::string> take() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::move(events_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> events_;
};
Log log_of_events;

// Returns a layer that logs when its backward runs.
nn::AnyModule tap() {
  return testing::layer([](Tensor x) {
    return testing::on_backward(x, [](Tensor grad) {
      log_of_events.add("tap");
      return grad;
    });
  });
}

// A RemoteStages that takes gradients, except the `refused` ones.
class Neighbour : public RemoteStages {
 public:
  bool takes = true;
  std::vector<Tensor> refused;
  std::vector<std::pair<Tensor, Tensor>> taken;

  explicit Neighbour(const std::vector<std::pair<std::string, Tensor>>& names)
      : names_(names) {}

  void send(std::vector<StageOutput>, const Event&) override {
    throw std::logic_error("all stages are here");
  }
  bool takes_gradients() const override { return takes; }
  void complete(int64_t stage, const Tensor& leaf, Tensor& grad,
                const Event& made) override {
    for (const auto& [name, tensor] : names_) {
      if (tensor.is_same(leaf)) {
        log_of_events.add(std::to_string(stage) + " " + name);
      }
    }
    for (const Tensor& each : refused) {
      if (each.is_same(leaf)) return;
    }
    made.wait(grad.device());
    taken.emplace_back(leaf, std::move(grad));
  }
  void complete(int64_t stage) override {
    log_of_events.add("end of " + std::to_string(stage));
  }
  void check() override {}

 private:
  const std::vector<std::pair<std::string, Tensor>> names_;
};

// A model of two stages: first, tap and second in one, third in the other.
struct Model {
  nn::Linear first{4, 4}, second{4, 4}, third{4, 4};
  std::vector<std::pair<std::string, Tensor>> names{
      {"first.weight", first->weight},   {"first.bias", first->bias},
      {"second.weight", second->weight}, {"second.bias", second->bias},
      {"third.weight", third->weight},   {"third.bias", third->bias}};
  std::vector<c10::Device> devices = testing::devices(2);

  Stages stages() {
    first->to(devices[0]);
    second->to(devices[0]);
    third->to(devices[1]);
    std::vector<Layer> layers =
        testing::layers_of({nn::AnyModule(first), tap(), nn::AnyModule(second),
                            nn::AnyModule(third)});
    return Stages(partition(std::move(layers), {3, 1}, devices), {0, 1});
  }
};

void run(Stages& stages, const Schedule& schedule, RemoteStages& remote,
         const TrainOptions& options = {}) {
  const Tensor input = torch::arange(24, torch::kFloat).view({6, 4}).sin();
  const LossFunction loss = [](Value output, Value target) {
    return (std::move(output).unwrap<Tensor>() -
            std::move(target).unwrap<Tensor>())
        .pow(2)
        .mean();
  };
  TrainStep step(stages, schedule, options, &remote);
  step.give_input(Value::wrap(input.to(stages.partitions[0].device)));
  step.give_target(Value::wrap(torch::ones({6, 4})), loss);
  step.start();
  Executor executor({stages.partitions[0].device, stages.partitions[1].device},
                    1, /*one_at_a_time=*/true);
  executor.run(schedule, step.pass());
  step.finish();
  step.accumulate([] {});
}

TEST(RemoteStages, GetsEachGradientWhileTheLastBackwardGoesOn) {
  Model model;
  Stages stages = model.stages();
  Neighbour remote(model.names);
  run(stages, fill_drain(2, 3), remote);
  const auto events = log_of_events.take();
  // One operator makes the gradients of a weight and of its bias. Either may
  // come first, so their order is not checked.
  std::vector<std::string> layers;
  for (const std::string& each : events) {
    layers.push_back(each.substr(0, each.find('.')));
  }
  const std::vector<std::string> of_stage_1 = {"1 third", "1 third",
                                               "end of 1"};
  const std::vector<std::string> of_stage_0 = {
      "tap", "tap",     "0 second", "0 second",
      "tap", "0 first", "0 first",  "end of 0"};
  std::vector<std::string> first, second;
  for (const std::string& each : layers) {
    const bool last_stage = each[0] == '1' || each == "end of 1";
    (last_stage ? first : second).push_back(each);
  }
  EXPECT_EQ(first, of_stage_1);
  EXPECT_EQ(second, of_stage_0);
}

TEST(RemoteStages, WhatIsNotTakenIsAccumulatedAndTheBitsAreTheSame) {
  for (const bool fixed_order : {false, true}) {
    for (const Schedule& schedule : {fill_drain(2, 3), zero_bubble_h1(2, 3)}) {
      const auto options = TrainOptions().fixed_sum_order(fixed_order);
      Model model;
      Stages stages = model.stages();
      Neighbour silent(model.names);
      silent.takes = false;
      run(stages, schedule, silent, options);
      EXPECT_TRUE(silent.taken.empty());
      std::vector<Tensor> expected;
      for (auto& [name, tensor] : model.names) {
        expected.push_back(tensor.grad().clone());
        tensor.mutable_grad() = Tensor();
      }

      Neighbour remote(model.names);
      remote.refused = {model.first->weight, model.third->bias};
      run(stages, schedule, remote, options);
      EXPECT_EQ(remote.taken.size(), 4);
      for (const auto& [leaf, grad] : remote.taken) {
        EXPECT_FALSE(leaf.grad().defined());
        leaf.mutable_grad() = grad;
      }
      for (std::size_t k = 0; k < expected.size(); ++k) {
        EXPECT_TRUE(model.names[k].second.grad().equal(expected[k]))
            << model.names[k].first << " in " << fixed_order;
      }
      log_of_events.take();
    }
  }
}

}  // namespace
}  // namespace gpipe::internal
