#include "gpipe/runtime/operators/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <vector>

#include "gpipe/testing/devices.h"

namespace gpipe::internal {
namespace {

using torch::Tensor;

Tensor draw() {
  return torch::rand({8}, torch::TensorOptions(testing::device())).cpu();
}

// Returns what a layer of a micro-batch draws on the device.
Tensor drawn(StepSeed& step, int64_t microbatch, int64_t layer) {
  RandomScope scope(step, microbatch, testing::device());
  scope.enter_layer(layer);
  return draw();
}

Tensor drawn(uint64_t seed, int64_t microbatch, int64_t layer) {
  StepSeed step;
  step.set(seed);
  return drawn(step, microbatch, layer);
}

TEST(StepSeed, IsDrawnOnceFromTheDefaultGeneratorWhenItIsNeeded) {
  torch::manual_seed(3);
  const uint64_t peeked = StepSeed::peek();
  EXPECT_EQ(StepSeed::peek(), peeked);
  StepSeed step;
  EXPECT_FALSE(step.used());
  EXPECT_EQ(StepSeed::peek(), peeked);  // nothing was drawn yet
  EXPECT_EQ(step.get(), peeked);
  EXPECT_TRUE(step.used());
  EXPECT_EQ(step.get(), peeked);
  const uint64_t next = StepSeed::peek();
  torch::manual_seed(3);
  StepSeed::draw();  // draws what the step above has drawn
  EXPECT_EQ(StepSeed::peek(), next);
}

TEST(StepSeed, ThatIsSetDrawsNothing) {
  torch::manual_seed(3);
  const uint64_t peeked = StepSeed::peek();
  StepSeed step;
  step.set(12345);
  EXPECT_FALSE(step.used());
  EXPECT_EQ(step.get(), 12345u);
  EXPECT_TRUE(step.used());
  EXPECT_EQ(StepSeed::peek(), peeked);
}

TEST(RandomScope, NumbersDependOnStepMicrobatchAndLayerOnly) {
  const Tensor expected = drawn(7, 1, 2);
  torch::manual_seed(99);
  draw();
  EXPECT_TRUE(drawn(7, 1, 2).equal(expected));
  EXPECT_FALSE(drawn(8, 1, 2).equal(expected));
  EXPECT_FALSE(drawn(7, 2, 2).equal(expected));
  EXPECT_FALSE(drawn(7, 1, 3).equal(expected));
  EXPECT_FALSE(drawn(7, 2, 1).equal(expected));
}

TEST(RandomScope, ALayerThatRunsAgainDrawsTheSameSequence) {
  StepSeed step;
  step.set(7);
  RandomScope scope(step, 0, testing::device());
  scope.enter_layer(0);
  const Tensor first = draw(), second = draw();
  EXPECT_FALSE(first.equal(second));
  scope.enter_layer(1);
  EXPECT_FALSE(draw().equal(first));
  scope.enter_layer(0);
  EXPECT_TRUE(draw().equal(first));
  EXPECT_TRUE(draw().equal(second));
}

TEST(RandomScope, LeavesTheGeneratorsOfTheUserAlone) {
  torch::manual_seed(5);
  const Tensor expected = draw(), host = torch::rand({4});
  torch::manual_seed(5);
  drawn(7, 0, 0);
  EXPECT_TRUE(draw().equal(expected));
  EXPECT_TRUE(torch::rand({4}).equal(host));
}

TEST(RandomScope, DropoutIsThatOfTheCell) {
  const auto mask = [](uint64_t seed) {
    StepSeed step;
    step.set(seed);
    RandomScope scope(step, 0, testing::device());
    scope.enter_layer(0);
    const Tensor x = torch::ones({64}, torch::TensorOptions(testing::device()));
    return torch::dropout(x, 0.5, /*train=*/true).cpu();
  };
  const Tensor expected = mask(7);
  EXPECT_TRUE(mask(7).equal(expected));
  EXPECT_FALSE(mask(8).equal(expected));
}

TEST(RandomScope, ServesItsDeviceAndTheCpu) {
  StepSeed step;
  step.set(7);
  RandomScope scope(step, 0, testing::device());
  scope.enter_layer(0);
  EXPECT_TRUE(scope.generator(c10::kCPU).has_value());
  EXPECT_EQ(scope.generator(testing::device())->device(), testing::device());
  EXPECT_FALSE(scope.generator(c10::Device(c10::kMeta, 0)).has_value());
  EXPECT_FALSE(scope.generator(c10::Device(c10::kVulkan, 1)).has_value());
  EXPECT_TRUE(step.used());
}

TEST(RandomScope, WithoutARandomOperatorNoSeedIsDrawn) {
  torch::manual_seed(3);
  const uint64_t peeked = StepSeed::peek();
  StepSeed step;
  {
    RandomScope scope(step, 0, testing::device());
    scope.enter_layer(0);
    torch::ones({4}).mul(2);
  }
  EXPECT_FALSE(step.used());
  EXPECT_EQ(StepSeed::peek(), peeked);
}

TEST(RandomScope, IsOfTheThreadAndNests) {
  StepSeed step;
  step.set(7);
  EXPECT_EQ(RandomScope::current(), nullptr);
  {
    RandomScope outer(step, 0, testing::device());
    EXPECT_EQ(RandomScope::current(), &outer);
    {
      RandomScope inner(step, 1, testing::device());
      EXPECT_EQ(RandomScope::current(), &inner);
    }
    EXPECT_EQ(RandomScope::current(), &outer);
  }
  EXPECT_EQ(RandomScope::current(), nullptr);
}

TEST(RandomScope, AnInnerPipelineDrawsItsSeedFromTheLayerAroundIt) {
  const auto inner_seed = [](int64_t layer) {
    StepSeed outer;
    outer.set(7);
    RandomScope scope(outer, 0, testing::device());
    scope.enter_layer(layer);
    StepSeed inner;
    return inner.get();
  };
  torch::manual_seed(3);
  const uint64_t peeked = StepSeed::peek();
  EXPECT_EQ(inner_seed(0), inner_seed(0));
  EXPECT_NE(inner_seed(0), inner_seed(1));
  EXPECT_EQ(StepSeed::peek(), peeked);
}

// Draws twice with a generator of the layer's own.
Tensor with_own(StepSeed& step, const at::Generator& own, CallDraws* draws,
                bool again) {
  RandomScope scope(step, 0, testing::device(), draws, again);
  scope.enter_layer(0);
  return torch::cat({torch::rand({4}, own), torch::rand({4}, own)});
}

TEST(RandomScope, AGeneratorOfTheLayerIsUsedAndReplayedInTheRecompute) {
  StepSeed step;
  step.set(7);
  const at::Generator own = at::detail::createCPUGenerator(11);
  const Tensor expected = torch::rand({4}, own.clone());
  CallDraws draws;
  const Tensor first = with_own(step, own, &draws, /*again=*/false);
  EXPECT_TRUE(first.narrow(0, 0, 4).equal(expected));
  EXPECT_EQ(draws.given.size(), 2u);
  EXPECT_FALSE(step.used());

  torch::rand({1}, own);  // other code draws from it in between
  const at::Generator before = own.clone();
  EXPECT_TRUE(with_own(step, own, &draws, /*again=*/true).equal(first));
  EXPECT_TRUE(torch::rand({4}, own).equal(torch::rand({4}, before)));
  EXPECT_EQ(draws.given.size(), 2u);
}

// A generator whose state cannot be copied.
class Uncopyable : public at::CPUGeneratorImpl {
 public:
  Uncopyable() = default;

 private:
  Uncopyable* clone_impl() const override {
    TORCH_CHECK(false, "the state cannot be copied");
  }
};

TEST(RandomScope, ThatCannotBeMadeLeavesTheThreadAsItWas) {
  CallDraws draws;
  draws.starts.push_back(
      {c10::Device(c10::kCPU), at::make_generator<Uncopyable>()});
  EXPECT_THROW(RandomScope(draws, /*again=*/true), c10::Error);
  EXPECT_EQ(RandomScope::current(), nullptr);
  torch::rand({8});  // draws from no destroyed scope
}

}  // namespace
}  // namespace gpipe::internal
