#include "gpipe/runtime/operators/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <c10/core/TensorOptions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/testing/devices.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAreArray;
using torch::Tensor;

Tensor draw() {
  return torch::rand({8}, torch::TensorOptions(testing::device())).cpu();
}

// Returns what a layer of a micro-batch draws on the device.
Tensor drawn(StepSeed& step, int64_t microbatch, int64_t layer) {
  RandomScope scope(step, microbatch);
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

// A generator that notes whether its mutex is locked while it is copied.
class LockedCopy : public at::CPUGeneratorImpl {
 public:
  explicit LockedCopy(std::vector<bool>& locked) : locked_(locked) {}

 private:
  at::CPUGeneratorImpl* clone_impl() const override {
    bool locked = false;
    std::thread([&] {
      std::mutex& mutex = const_cast<LockedCopy*>(this)->mutex_;
      locked = !std::unique_lock<std::mutex>(mutex, std::try_to_lock);
    }).join();
    locked_.push_back(locked);
    return new at::CPUGeneratorImpl();
  }
  std::vector<bool>& locked_;
};

// A thread of the program may draw meanwhile.
TEST(StepSeed, PeekLocksTheDefaultGeneratorWhileItCopies) {
  std::vector<bool> locked;
  auto& shared =
      const_cast<at::Generator&>(at::detail::getDefaultCPUGenerator());
  const at::Generator before =
      std::exchange(shared, at::make_generator<LockedCopy>(locked));
  StepSeed::peek();
  shared = before;
  EXPECT_THAT(locked, ElementsAre(true));
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

// So a pipeline without random operators in a layer disturbs no other draw.
TEST(StepSeed, InALayerIsDrawnFromTheLayerWhenItIsNeeded) {
  StepSeed outer;
  outer.set(7);
  RandomScope scope(outer, /*microbatch=*/1);
  scope.enter_layer(2);
  StepSeed inner;
  EXPECT_FALSE(outer.used());
  const uint64_t seed = inner.get();
  EXPECT_TRUE(outer.used());
  scope.enter_layer(2);
  EXPECT_EQ(random64(*scope.generator(c10::Device(c10::kCPU))), seed);
  inner.leave_layer();
  EXPECT_EQ(inner.get(), seed);
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
  RandomScope scope(step, 0);
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
    RandomScope scope(step, 0);
    scope.enter_layer(0);
    const Tensor x = torch::ones({64}, torch::TensorOptions(testing::device()));
    return torch::dropout(x, 0.5, /*train=*/true).cpu();
  };
  const Tensor expected = mask(7);
  EXPECT_TRUE(mask(7).equal(expected));
  EXPECT_FALSE(mask(8).equal(expected));
}

TEST(RandomScope, ServesTheCpuAndAccelerators) {
  StepSeed step;
  step.set(7);
  RandomScope scope(step, 0);
  scope.enter_layer(0);
  EXPECT_TRUE(scope.generator(c10::kCPU).has_value());
  for (const int k : {0, 1}) {
    EXPECT_EQ(scope.generator(testing::device(k))->device(),
              testing::device(k));
  }
  EXPECT_FALSE(scope.generator(c10::Device(c10::kMeta, 0)).has_value());
  EXPECT_FALSE(scope.generator(c10::Device(c10::kVulkan, 1)).has_value());
  EXPECT_TRUE(step.used());
}

// A layer may draw on other devices than that of its partition, and a device
// may have no index.
TEST(RandomScope, NumbersOfAllDevicesAreThoseOfTheLayer) {
  const c10::Device first = testing::device(0), second = testing::device(1);
  const auto draws = [&](uint64_t seed) {
    StepSeed step;
    step.set(seed);
    RandomScope scope(step, 0);
    scope.enter_layer(0);
    std::vector<Tensor> all;
    for (const c10::Device& each : {first, second, c10::Device(c10::kCPU),
                                    c10::Device(first.type()), second}) {
      all.push_back(torch::rand({8}, torch::TensorOptions(each)).cpu());
    }
    return all;
  };
  const std::vector<Tensor> expected = draws(7), others = draws(8);
  torch::manual_seed(99);
  const std::vector<Tensor> again = draws(7);
  for (std::size_t k = 0; k < expected.size(); ++k) {
    EXPECT_TRUE(again[k].equal(expected[k])) << k;
    EXPECT_FALSE(others[k].equal(expected[k])) << k;
  }
  EXPECT_FALSE(expected[0].equal(expected[1]));
  EXPECT_FALSE(expected[0].equal(expected[3]));
  EXPECT_FALSE(expected[1].equal(expected[4]));
}

TEST(RandomScope, AFunctionThatNamesTheCpuByAnIndexDrawsTheSameAgain) {
  CallRecord record;
  const auto call = [&](bool again) {
    RandomScope scope(record, again);
    return torch::rand({4}, torch::TensorOptions(c10::Device("cpu:0")));
  };
  const Tensor first = call(/*again=*/false);
  EXPECT_TRUE(call(/*again=*/true).equal(first));
}

// The workers of a pipeline that the function runs.
TEST(RandomScope, ThreadsOfAFunctionRecordTheStartOfEachDeviceOnce) {
  std::map<std::string, at::Generator> generators;
  for (const c10::Device& device :
       {c10::Device(c10::kCPU), testing::device(0), testing::device(1)}) {
    generators[device.str()] = at::globalContext().defaultGenerator(device);
  }
  for (int round = 0; round < 20; ++round) {
    CallRecord record;
    RandomScope scope(record, /*again=*/false);
    std::promise<void> begin;
    const std::shared_future<void> begun = begin.get_future().share();
    std::vector<std::thread> workers;
    for (const auto& [device, generator] : generators) {
      workers.emplace_back([&scope, begun, generator = generator] {
        begun.wait();
        EXPECT_EQ(scope.given(generator), generator);
      });
      workers.emplace_back([&scope, begun, generator = generator] {
        begun.wait();
        EXPECT_EQ(scope.generator(generator.device()), generator);
      });
    }
    begin.set_value();
    for (std::thread& each : workers) each.join();
    std::vector<std::string> devices, expected;
    for (const CallRecord::Start& start : record.starts) {
      devices.push_back(start.device.str());
    }
    for (const auto& each : generators) expected.push_back(each.first);
    EXPECT_THAT(devices, UnorderedElementsAreArray(expected));
  }
}

TEST(RandomScope, WithoutARandomOperatorNoSeedIsDrawn) {
  torch::manual_seed(3);
  const uint64_t peeked = StepSeed::peek();
  StepSeed step;
  {
    RandomScope scope(step, 0);
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
    RandomScope outer(step, 0);
    EXPECT_EQ(RandomScope::current(), &outer);
    {
      RandomScope inner(step, 1);
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
    RandomScope scope(outer, 0);
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
Tensor with_own(StepSeed& step, const at::Generator& own, CallRecord* record,
                bool again) {
  RandomScope scope(step, 0, record, again);
  scope.enter_layer(0);
  return torch::cat({torch::rand({4}, own), torch::rand({4}, own)});
}

TEST(RandomScope, AGeneratorOfTheLayerIsUsedAndReplayedInTheRecompute) {
  StepSeed step;
  step.set(7);
  const at::Generator own = at::detail::createCPUGenerator(11);
  const Tensor expected = torch::rand({4}, own.clone());
  CallRecord record;
  const Tensor first = with_own(step, own, &record, /*again=*/false);
  EXPECT_TRUE(first.narrow(0, 0, 4).equal(expected));
  EXPECT_EQ(record.given.size(), 2u);
  EXPECT_FALSE(step.used());

  torch::rand({1}, own);  // other code draws from it in between
  const at::Generator before = own.clone();
  EXPECT_TRUE(with_own(step, own, &record, /*again=*/true).equal(first));
  EXPECT_TRUE(torch::rand({4}, own).equal(torch::rand({4}, before)));
  EXPECT_EQ(record.given.size(), 2u);
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
  CallRecord record;
  record.starts.push_back(
      {c10::Device(c10::kCPU), at::make_generator<Uncopyable>()});
  EXPECT_THROW(RandomScope(record, /*again=*/true), c10::Error);
  EXPECT_EQ(RandomScope::current(), nullptr);
  torch::rand({8});  // draws from no destroyed scope
}

c10::OperatorHandle operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

TEST(RandomOperatorsTest, AnOperatorOfEachKind) {
  EXPECT_EQ(draw_of(operator_named("aten::bernoulli")), Draw::kGenerator);
  EXPECT_EQ(draw_of(operator_named("aten::native_dropout")),
            Draw::kDefaultGenerator);
  EXPECT_EQ(draw_of(operator_named("aten::_cudnn_rnn")), Draw::kDropoutState);
  EXPECT_EQ(draw_of(operator_named("aten::rand_like")), Draw::kCallees);
  EXPECT_EQ(draw_of(operator_named("aten::dropout")), Draw::kCallees);
  EXPECT_EQ(draw_of(operator_named("aten::relu")), Draw::kNothing);
}

// Fails if a LibTorch brings a random operator that gpipe does not know.
TEST(RandomOperatorsTest, AllOperatorsOfThisLibTorchAreKnown) {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<std::string> unknown;
  int random = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasTag(at::Tag::nondeterministic_seeded)) continue;
    ++random;
    if (draw_of(*op) == Draw::kUnknown) unknown.push_back(toString(name));
  }
  EXPECT_THAT(unknown, ::testing::IsEmpty());
  EXPECT_GT(random, 100);
}

// An optional argument may also be an undefined object.
TEST(RandomOperatorsTest, AnUndefinedGeneratorIsNone) {
  StepSeed step;
  step.set(7);
  std::vector<at::Tensor> draws;
  for (const auto& generator : std::vector<std::optional<at::Generator>>{
           std::nullopt, at::Generator()}) {
    RandomScope scope(step, 0);
    scope.enter_layer(0);
    draws.push_back(at::rand({4}, generator));
  }
  EXPECT_TRUE(draws[0].equal(draws[1]));
}

// Kernels for the CPU that replace cuDNN's and record their arguments.
class Recurrent {
 public:
  Recurrent()
      : library_(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__,
                 __LINE__) {
    library_.impl("_cudnn_init_dropout_state", &init);
    library_.impl("_cudnn_rnn", &forward);
    seeds().clear();
    states().clear();
  }

  // Calls the operator with a dropout state of zeros.
  void call(double dropout, bool train) {
    const at::Tensor x = at::ones({2, 1, 3});
    at::_cudnn_rnn(x, {x}, 1, {}, x, {}, /*mode=*/2, /*hidden_size=*/3,
                   /*proj_size=*/0, /*num_layers=*/2, /*batch_first=*/false,
                   dropout, train, /*bidirectional=*/false, {},
                   at::full({1}, 0, at::kLong));
  }

  // The seeds of the states that were made, and the states that were used: a
  // made one contains its seed.
  static std::vector<int64_t>& seeds() {
    static std::vector<int64_t> seeds;
    return seeds;
  }
  static std::vector<int64_t>& states() {
    static std::vector<int64_t> states;
    return states;
  }

 private:
  static at::Tensor init(double, bool, int64_t seed,
                         std::optional<at::ScalarType>,
                         std::optional<at::Layout>, std::optional<at::Device>,
                         std::optional<bool>) {
    seeds().push_back(seed);
    return at::full({1}, seed, at::kLong);
  }

  static std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
  forward(const at::Tensor& input, at::TensorList, int64_t,
          const std::optional<at::Tensor>&, const at::Tensor&,
          const std::optional<at::Tensor>&, int64_t, c10::SymInt, c10::SymInt,
          int64_t, bool, double, bool, bool, c10::SymIntArrayRef,
          const std::optional<at::Tensor>& dropout_state) {
    states().push_back(dropout_state->item<int64_t>());
    const at::Tensor none = at::empty({0});
    return {input, none, none, none, none};
  }

  torch::Library library_;
};

// Returns the states that two calls in a layer use.
std::vector<int64_t> states_of(uint64_t step_seed, int64_t microbatch,
                               int64_t layer) {
  Recurrent recurrent;
  StepSeed step;
  step.set(step_seed);
  RandomScope scope(step, microbatch);
  scope.enter_layer(layer);
  recurrent.call(0.5, /*train=*/true);
  recurrent.call(0.5, /*train=*/true);
  EXPECT_EQ(Recurrent::states(), Recurrent::seeds());
  return Recurrent::states();
}

TEST(RandomOperatorsTest, TheDropoutOfCudnnHasTheSeedsOfTheCell) {
  const auto states = states_of(7, 1, 2);
  ASSERT_EQ(states.size(), 2u);
  EXPECT_NE(states[0], states[1]);
  EXPECT_EQ(states_of(7, 1, 2), states);  // as in a recompute
  EXPECT_NE(states_of(8, 1, 2), states);
  EXPECT_NE(states_of(7, 2, 2), states);
  EXPECT_NE(states_of(7, 1, 3), states);
}

TEST(RandomOperatorsTest, WithoutDropoutOrScopeCudnnKeepsItsState) {
  Recurrent recurrent;
  recurrent.call(0.5, /*train=*/true);
  StepSeed step;
  step.set(7);
  RandomScope scope(step, 0);
  scope.enter_layer(0);
  recurrent.call(0, /*train=*/true);
  recurrent.call(0.5, /*train=*/false);
  EXPECT_EQ(Recurrent::seeds(), std::vector<int64_t>());
  EXPECT_EQ(Recurrent::states(), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_FALSE(step.used());
}

// Takes all arguments of an operator and returns undefined tensors and zeros.
void return_nothing(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (const c10::Argument& result : op.schema().returns()) {
    if (result.type()->isSubtypeOf(c10::TensorType::get())) {
      stack->emplace_back(at::Tensor());
    } else {
      stack->emplace_back(int64_t{0});
    }
  }
}

// Replaces the kernel of attention on accelerators. Simulated ones have none.
class Attention {
 public:
  using Kernel = void(const c10::OperatorHandle&, torch::jit::Stack*);

  template <Kernel* kernel>
  static torch::Library replace() {
    torch::Library library(
        torch::Library::IMPL, "aten",
        c10::computeDispatchKey(std::nullopt, std::nullopt, testing::device()),
        __FILE__, __LINE__);
    library.impl("_scaled_dot_product_flash_attention",
                 torch::CppFunction::makeFromBoxedFunction<kernel>());
    return library;
  }
  static void call(const at::Tensor& x, double dropout) {
    at::_scaled_dot_product_flash_attention(x, x, x, dropout);
  }

  // A kernel that blocks until two threads are in it.
  static void meet(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    static std::mutex mutex;
    static std::condition_variable changed;
    static int threads = 0;
    {
      std::unique_lock<std::mutex> lock(mutex);
      ++threads;
      changed.notify_all();
      EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(30),
                                   [] { return threads == 2; }));
    }
    return_nothing(op, stack);
  }
};

TEST(RandomOperatorsTest, WorkersOfTwoDevicesDrawAtTheSameTime) {
  if (testing::device().type() != c10::kHPU) {
    GTEST_SKIP() << "replaces a kernel that only simulated devices lack";
  }
  if (testing::device(0) == testing::device(1)) {
    GTEST_SKIP() << "workers of one device take turns";
  }
  const torch::Library library = Attention::replace<&Attention::meet>();
  std::vector<std::thread> workers;
  for (const int k : {0, 1}) {
    workers.emplace_back([k] {
      const c10::Device device = testing::device(k);
      StepSeed step;
      step.set(7);
      RandomScope scope(step, 0);
      scope.enter_layer(0);
      Attention::call(at::ones({1, 1, 2, 2}).to(device), /*dropout=*/0.5);
    });
  }
  for (std::thread& each : workers) each.join();
}

TEST(RandomOperatorsTest, AttentionWithoutDropoutDrawsNothing) {
  const c10::Device device = testing::device();
  if (device.type() != c10::kHPU) {
    GTEST_SKIP() << "replaces a kernel that only simulated devices lack";
  }
  const torch::Library library = Attention::replace<&return_nothing>();
  const at::Tensor x = testing::ones({1, 1, 2, 2});
  StepSeed step;
  step.set(7);
  RandomScope scope(step, 0);
  scope.enter_layer(0);
  Attention::call(x, /*dropout=*/0);
  EXPECT_FALSE(step.used());
  Attention::call(x, /*dropout=*/0.5);
  EXPECT_TRUE(step.used());
}

// The first draw of the kernel of an operator that another one calls.
double drawn_within = 0;

// Kernels as CUDA's: that of attention calls an operator that draws.
void outer_attention(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto count = op.schema().arguments().size();
  const at::Tensor x = torch::jit::peek(*stack, 0, count).toTensor();
  at::_flash_attention_forward(x, x, x, std::nullopt, std::nullopt, 2, 2,
                               /*dropout_p=*/0.5, false, false);
  return_nothing(op, stack);
}
void inner_attention(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::Generator shared =
      at::globalContext().defaultGenerator(testing::device());
  drawn_within = at::rand({1}, shared, testing::device()).cpu().item<double>();
  return_nothing(op, stack);
}

TEST(RandomOperatorsTest, AnOperatorWithinAnotherOneDrawsFromTheSameState) {
  const c10::Device device = testing::device();
  if (device.type() != c10::kHPU) {
    GTEST_SKIP() << "replaces a kernel that only simulated devices lack";
  }
  const torch::Library outer = Attention::replace<&outer_attention>();
  torch::Library inner(
      torch::Library::IMPL, "aten",
      c10::computeDispatchKey(std::nullopt, std::nullopt, device), __FILE__,
      __LINE__);
  inner.impl("_flash_attention_forward",
             torch::CppFunction::makeFromBoxedFunction<&inner_attention>());
  const at::Tensor x = testing::ones({1, 1, 2, 2});
  const auto draws = [&] {
    StepSeed step;
    step.set(7);
    RandomScope scope(step, 0);
    scope.enter_layer(0);
    std::vector<double> result;
    for (int k = 0; k < 2; ++k) {
      Attention::call(x, /*dropout=*/0.5);
      result.push_back(drawn_within);
    }
    return result;
  };
  const std::vector<double> first = draws();
  EXPECT_NE(first[0], first[1]);
  EXPECT_EQ(draws(), first);  // as in a recompute
}

}  // namespace
}  // namespace gpipe::internal
