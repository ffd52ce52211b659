// Tests call_checkpointed() on values. gpipe/checkpoint_test.cc tests what
// users call.
#include "gpipe/runtime/cell/checkpointed_call.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "gpipe/skip/layout.h"
#include "gpipe/skip/skippable.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::StartsWith;
using torch::Tensor;

Tensor number(double value, bool requires_grad = false) {
  return at::full({1}, value, at::kDouble)
      .to(testing::device())
      .requires_grad_(requires_grad);
}

// Calls `function` of one tensor, checkpointed, and returns its tensor.
template <typename Function>
Tensor call(Function function, const Tensor& input,
            std::shared_ptr<torch::nn::Module> module = nullptr) {
  return call_checkpointed(
             [function](std::vector<Value> inputs) {
               return Value::wrap(function(inputs[0].tensors()[0]));
             },
             {Value::wrap(input)}, std::move(module))
      .tensors()[0];
}

TEST(CheckpointedCall, ASecondCallGetsLeavesThatRequireGradAsTheInputsDid) {
  std::vector<bool> is_leaf, require_grad;
  const auto function = [&](std::vector<Value> inputs) {
    for (const Value& each : inputs) {
      is_leaf.push_back(each.tensors()[0].is_leaf());
      require_grad.push_back(each.tensors()[0].requires_grad());
    }
    return Value::wrap(inputs[0].tensors()[0] * inputs[1].tensors()[0]);
  };
  const Tensor x = number(2, true);
  const Value out =
      call_checkpointed(function, {Value::wrap(x * 3), Value::wrap(number(5))});
  out.tensors()[0].backward();
  EXPECT_THAT(is_leaf, ElementsAre(false, true, true, true));
  EXPECT_THAT(require_grad, ElementsAre(true, false, true, false));
  EXPECT_EQ(x.grad().item<double>(), 15);
}

TEST(CheckpointedCall, ASecondCallHasTheAutocastStateOfTheFirstWithoutACache) {
  std::vector<bool> enabled, cached;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Tensor y = call(
      [&](const Tensor& h) {
        enabled.push_back(at::autocast::is_autocast_enabled(at::kCPU));
        cached.push_back(at::autocast::is_autocast_cache_enabled());
        return h * h;
      },
      number(2, true));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  y.backward();
  EXPECT_THAT(enabled, ElementsAre(true, true));
  EXPECT_THAT(cached, ElementsAre(true, false));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST(CheckpointedCall, ASecondCallPopsWhatTheFirstOnePopped) {
  const SkipKey in{Namespace::none(), "in"}, out{Namespace::none(), "out"};
  MapSkipTracker outer;
  const UseSkipTracker use(outer);
  const Tensor popped = number(3, true), x = number(2, true);
  outer.save(in, popped);
  int calls = 0;
  const Tensor y = call(
      [&](const Tensor& h) {
        ++calls;
        const Tensor skip = *current_skip_tracker().load(in);
        EXPECT_NE(error_of([&] { current_skip_tracker().load(in); }), "");
        EXPECT_NE(error_of([&] { current_skip_tracker().load(out); }), "");
        current_skip_tracker().save(out, skip * h);
        return h * *current_skip_tracker().load(out);
      },
      x);
  y.backward();
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(x.grad().item<double>(), 2 * 2 * 3);
  EXPECT_EQ(popped.grad().item<double>(), 4);
  EXPECT_NE(error_of([&] { outer.load(in); }), "");
}

// Multiplies by its weight and by the number of its calls, which is a buffer.
struct Counter : torch::nn::Module {
  Counter() : torch::nn::Module("Counter") {
    weight = register_parameter("weight", number(3));
    calls = register_buffer("calls", number(0));
  }
  Tensor forward(const Tensor& x) {
    calls.add_(1);
    seen.push_back(calls.item<double>());
    return x * weight * calls.clone();
  }
  Tensor weight, calls;
  std::vector<double> seen;
};

TEST(CheckpointedCall, ASecondCallSeesTheBuffersOfTheFirstAndLeavesThem) {
  const auto counter = std::make_shared<Counter>();
  const auto forward = [&](const Tensor& h) { return counter->forward(h); };
  const Tensor x = number(2, true);
  const Tensor first = call(forward, x, counter);
  const Tensor second = call(forward, x, counter);
  EXPECT_EQ(first.item<double>(), 6);
  EXPECT_EQ(second.item<double>(), 12);
  first.backward();
  EXPECT_THAT(counter->seen, ElementsAre(1, 2, 1));
  EXPECT_EQ(counter->calls.item<double>(), 2);
  EXPECT_EQ(counter->weight.grad().item<double>(), 2);
}

TEST(CheckpointedCall, NamesTheParameterThatWasChanged) {
  const auto counter = std::make_shared<Counter>();
  const Tensor y = call([&](const Tensor& h) { return counter->forward(h); },
                        number(2, true), counter);
  {
    const c10::AutoGradMode no_graph(false);
    counter->weight.add_(1);
  }
  EXPECT_THAT(error_of([&] { y.backward(); }),
              StartsWith("c10::Error: parameter 'weight' ([1] Double) of "
                         "Counter has been changed in place"));
}

}  // namespace
}  // namespace gpipe::internal
