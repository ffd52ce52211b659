// Tests random numbers in a pipeline, and LibTorch's generators outside it.
#include "gpipe/runtime/operators/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <thread>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::device;
using testing::devices;
using testing::kModes;
using testing::layer;
using testing::ones;
using testing::options;
using torch::Tensor;
using torch::nn::Sequential;

Tensor state() { return at::detail::getDefaultCPUGenerator().get_state(); }

// Returns the states of the default generators of four partitions' devices. A
// pipeline never advances those of accelerators.
std::vector<Tensor> device_states() {
  std::vector<Tensor> states;
  for (const torch::Device& each : devices(4)) {
    states.push_back(at::globalContext().defaultGenerator(each).get_state());
  }
  return states;
}

// Returns the generator state after `draws` 64-bit draws from the default
// generator.
Tensor state_after(uint64_t seed, int draws) {
  torch::manual_seed(seed);
  auto generator = at::detail::getDefaultCPUGenerator();
  for (int k = 0; k < draws; ++k) {
    at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  }
  return state();
}

Sequential dropouts() {
  return Sequential(torch::nn::Dropout(0.5), torch::nn::Dropout(0.5),
                    torch::nn::Dropout(0.5));
}

Sequential noise() {
  return Sequential(
      layer([](Tensor x) { return x + torch::rand({6}, x.options()); }),
      layer([](Tensor x) { return x + torch::randn_like(x); }),
      layer([](Tensor x) {
        // The middle term uses the CPU generator, on any device.
        return x + torch::randperm(6, x.options().dtype(torch::kLong)) +
               torch::empty({6}).uniform_().to(x.device()) +
               torch::rand({6}, x.options()).lt(0.5);
      }));
}

Tensor run(Sequential model, const std::vector<int64_t>& balance,
           Checkpoint mode, uint64_t seed) {
  GPipe pipeline(model, options(balance, 4, mode));
  const Tensor x = torch::zeros({8, 6}).to(device()).requires_grad_();
  torch::manual_seed(seed);
  return pipeline->forward(x).detach().cpu();
}

TEST(DefaultGenerator, IsLeftAloneByAModelWithoutRandomOperators) {
  for (const Checkpoint mode : kModes) {
    GPipe pipeline(Sequential(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3)),
                   options({1, 1}, 2, mode));
    torch::manual_seed(5);
    const Tensor before = state();
    const auto on_devices = device_states();
    pipeline->forward(ones({4, 3})).sum().backward();
    EXPECT_TRUE(torch::equal(state(), before));
    EXPECT_EQ(testing::difference(device_states(), on_devices), "");
  }
}

TEST(DefaultGenerator, IsLeftAloneByDropoutThatIsOff) {
  GPipe pipeline(dropouts(), options({1, 2}, 2, Checkpoint::kAlways));
  pipeline->eval();
  torch::manual_seed(5);
  const Tensor before = state();
  const auto on_devices = device_states();
  pipeline->forward(ones({4, 3}));
  EXPECT_TRUE(torch::equal(state(), before));
  EXPECT_EQ(testing::difference(device_states(), on_devices), "");
}

TEST(DefaultGenerator, AdvancesByOneDrawPerForward) {
  for (const Checkpoint mode : kModes) {
    for (const auto& balance :
         std::vector<std::vector<int64_t>>{{3}, {1, 2}, {1, 1, 1}}) {
      GPipe pipeline(dropouts(), options(balance, 4, mode));
      torch::manual_seed(5);
      const auto on_devices = device_states();
      for (int forwards = 1; forwards <= 3; ++forwards) {
        const Tensor x = ones({8, 3}).requires_grad_();
        pipeline->forward(x).sum().backward();
        const Tensor actual = state();
        if (!device().is_cpu()) {
          EXPECT_EQ(testing::difference(device_states(), on_devices), "");
        }
        EXPECT_TRUE(torch::equal(actual, state_after(5, forwards)));
      }
    }
  }
}

TEST(Random, IsTheSameForTheSameSeedWhateverTheTiming) {
  for (const auto& make : {dropouts, noise}) {
    const Tensor first = run(make(), {1, 1, 1}, Checkpoint::kExceptLast, 7);
    for (int k = 0; k < 20; ++k) {
      ASSERT_TRUE(torch::equal(
          run(make(), {1, 1, 1}, Checkpoint::kExceptLast, 7), first));
    }
  }
}

TEST(Random, DependsNeitherOnTheBalanceNorOnTheMode) {
  const Tensor first = run(noise(), {3}, Checkpoint::kNever, 7);
  for (const Checkpoint mode : kModes) {
    for (const auto& balance :
         std::vector<std::vector<int64_t>>{{1, 2}, {2, 1}, {1, 1, 1}}) {
      EXPECT_TRUE(torch::equal(run(noise(), balance, mode, 7), first));
    }
  }
}

TEST(Random, IsAnotherInEveryStepMicrobatchAndLayer) {
  const Tensor x = ones({4, 50});
  GPipe pipeline(dropouts(), options({1, 2}, 2, Checkpoint::kNever));
  torch::manual_seed(7);
  const Tensor output = pipeline->forward(x).cpu();
  EXPECT_FALSE(torch::equal(output, pipeline->forward(x).cpu()));
  EXPECT_FALSE(torch::equal(output.narrow(0, 0, 2), output.narrow(0, 2, 2)));
  torch::manual_seed(8);
  EXPECT_FALSE(torch::equal(output, pipeline->forward(x).cpu()));
  // Equal masks in all layers would keep half of the elements.
  EXPECT_LT((output != 0).sum().item<int64_t>(), 60);
}

TEST(Random, HasTheRightDistribution) {
  GPipe pipeline(Sequential(torch::nn::Dropout(0.25)),
                 options({1}, 10, Checkpoint::kNever));
  torch::manual_seed(0);
  const Tensor output = pipeline->forward(ones({1000, 100})).cpu();
  EXPECT_NEAR((output == 0).to(torch::kFloat).mean().item<double>(), 0.25,
              0.01);
  EXPECT_NEAR(output.mean().item<double>(), 1.0, 0.01);
}

// Runs two backwards of an output that is `x`, ones, times random numbers.
// Expects the same numbers in both.
void expect_replayed(const Tensor& output, const Tensor& x) {
  output.sum().backward({}, /*retain_graph=*/true);
  EXPECT_TRUE(torch::allclose(x.grad().cpu(), output.cpu()));
  output.sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad().cpu(), 2 * output.cpu()));
}

TEST(Random, IsReplayedInTheRecompute) {
  for (const Checkpoint mode : kModes) {
    GPipe pipeline(
        Sequential(layer([](Tensor x) { return x * torch::rand_like(x); }),
                   layer([](Tensor x) {
                     return x * torch::rand(x.sizes(), x.options());
                   }),
                   layer([](Tensor x) {  // the CPU generator, on any device
                     return x * torch::rand(x.sizes()).to(x.device());
                   })),
        options({1, 1, 1}, 4, mode));
    const Tensor x = ones({8, 6}).requires_grad_();
    auto output = pipeline->forward(x);
    // Advances the default generators.
    torch::rand({3});
    for (const torch::Device& each : devices(3)) torch::rand({3}, each);
    expect_replayed(output, x);
  }
}

TEST(Random, WorksWithoutGradients) {
  torch::NoGradGuard no_grad;
  const Tensor first = run(dropouts(), {1, 2}, Checkpoint::kAlways, 7);
  const Tensor after = state();
  EXPECT_TRUE(torch::equal(after, state_after(7, 1)));
  EXPECT_TRUE(
      torch::equal(run(dropouts(), {3}, Checkpoint::kAlways, 7), first));
}

TEST(Random, AGeneratorGivenByTheLayerIsTheOneUsed) {
  const auto generator = [] {
    auto made = at::globalContext().defaultGenerator(device()).clone();
    made.set_current_seed(11);
    return made;
  };
  auto own = generator();
  GPipe pipeline(Sequential(layer([&](Tensor x) {
                   return x + torch::rand(x.sizes(), own, x.options());
                 })),
                 options({1}, 1, Checkpoint::kNever));
  const Tensor before = state();
  const auto on_devices = device_states();
  const Tensor output = pipeline->forward(torch::zeros({4}).to(device()));
  EXPECT_TRUE(torch::equal(
      output.cpu(), torch::rand({4}, generator(), output.options()).cpu()));
  EXPECT_TRUE(torch::equal(state(), before));
  EXPECT_EQ(testing::difference(device_states(), on_devices), "");
}

// The recompute draws from the state that each operator had in the forward. The
// generators themselves keep their present state, since the user may have drawn
// from them in between.
TEST(Random, OfAGeneratorGivenByTheLayerIsReplayedInTheRecompute) {
  std::vector<Tensor> outputs, states;
  for (const Checkpoint mode : kModes) {
    auto own = at::globalContext().defaultGenerator(device()).clone();
    auto seeded = own.clone();
    own.set_current_seed(11);
    const auto drawing = [own](Tensor x) {
      const Tensor mask = torch::empty_like(x).bernoulli_(0.5, own);
      return x * (mask + torch::rand(x.sizes(), own, x.options()));
    };
    GPipe pipeline(
        Sequential(layer(drawing), layer(drawing),
                   layer([seeded](Tensor x) mutable {  // the layer seeds twice
                     seeded.set_current_seed(12);
                     x = x + x * torch::rand(x.sizes(), seeded, x.options());
                     seeded.set_current_seed(13);
                     return x * torch::rand(x.sizes(), seeded, x.options());
                   })),
        options({3}, 4, mode));
    const Tensor x = ones({8, 6}).requires_grad_();
    auto output = pipeline->forward(x);
    torch::rand({3}, own, x.options());
    states.push_back(own.get_state());
    expect_replayed(output, x);
    EXPECT_TRUE(torch::equal(own.get_state(), states.back()));
    EXPECT_TRUE(torch::equal(states.back(), states.front()));
    outputs.push_back(output.detach().cpu());
    EXPECT_TRUE(torch::equal(outputs.back(), outputs.front()));
  }
}

TEST(Random, OfTwoPipelinesAtTheSameTimeIsReplayedByEach) {
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      GPipe pipeline(dropouts(), options({1, 1, 1}, 4, Checkpoint::kAlways));
      for (int k = 0; k < 50; ++k) {
        const Tensor x = ones({8, 6}).requires_grad_();
        const Tensor output = pipeline->forward(x);
        output.sum().backward();
        right += torch::equal(output.cpu(), x.grad().cpu());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 100);
}

// The second partition draws before the first one fails, or not at all.
TEST(Random, AFailedStepDrawsNothing) {
  bool fails = false, waits = false;
  std::atomic<bool> drawn{false};
  std::atomic<int> calls{0};
  torch::nn::Dropout dropout;
  Sequential model(layer([&](Tensor x) {
                     if (!fails) return x;
                     while (waits && calls > 0 && !drawn) {
                       std::this_thread::yield();
                     }
                     TORCH_CHECK(waits && calls++ == 0, "spilt");
                     return x;
                   }),
                   layer([&](Tensor x) {
                     x = dropout(x);
                     drawn = true;
                     return x;
                   }));
  GPipe pipeline(model, options({1, 1}, 2, Checkpoint::kNever));
  const Tensor x = ones({8, 6}).requires_grad_();
  const auto train = [&] {
    pipeline->train_step(
        x, x.detach(), [](const Tensor& y, const Tensor&) { return y.mean(); },
        fill_drain(2, 2));
  };
  const Tensor before = state_after(3, 0), after = state_after(3, 1);
  for (const bool by_forward : {true, false}) {
    for (const bool late : {false, true}) {
      torch::manual_seed(3);
      fails = true;
      waits = late;
      drawn = false;
      calls = 0;
      EXPECT_ANY_THROW(by_forward ? (void)pipeline->forward(x) : train());
      EXPECT_EQ(drawn, late);
      EXPECT_TRUE(state().equal(before));
      fails = false;
      by_forward ? (void)pipeline->forward(x) : train();
      EXPECT_TRUE(state().equal(after));
    }
  }
}

TEST(Random, OutsideOfAPipelineIsUntouched) {
  for (const torch::Device& where : {torch::Device(torch::kCPU), device()}) {
    torch::manual_seed(7);
    const Tensor plain = torch::rand({5}, where).cpu();
    run(dropouts(), {1, 2}, Checkpoint::kAlways, 3);
    torch::manual_seed(7);
    EXPECT_TRUE(torch::equal(torch::rand({5}, where).cpu(), plain));
  }
  EXPECT_EQ(internal::RandomScope::current(), nullptr);
}

}  // namespace
}  // namespace gpipe
