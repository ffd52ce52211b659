// Random numbers in a pipeline, and LibTorch's generator outside of it.
#include "gpipe/runtime/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/torch.h>

#include <atomic>
#include <thread>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/layers.h"

namespace gpipe {
namespace {

using testing::layer;
using torch::Tensor;
using torch::nn::Sequential;

constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast,
                                 Checkpoint::kNever};

GPipeOptions options(std::vector<int64_t> balance, int64_t chunks,
                     Checkpoint mode) {
  return GPipeOptions(std::move(balance)).chunks(chunks).checkpoint(mode);
}

Tensor state() { return at::detail::getDefaultCPUGenerator().get_state(); }

// The state after `draws` 64-bit draws from the default generator.
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
  return Sequential(layer([](Tensor x) { return x + torch::rand({6}); }),
                    layer([](Tensor x) { return x + torch::randn_like(x); }),
                    layer([](Tensor x) {
                      return x + torch::randperm(6) +
                             torch::empty({6}).uniform_() +
                             torch::rand({6}).lt(0.5);
                    }));
}

Tensor run(Sequential model, std::vector<int64_t> balance, Checkpoint mode,
           uint64_t seed) {
  GPipe pipeline(model, options(std::move(balance), 4, mode));
  const Tensor x = torch::zeros({8, 6}).requires_grad_();
  torch::manual_seed(seed);
  return pipeline->forward(x).detach();
}

TEST(DefaultGenerator, IsLeftAloneByAModelWithoutRandomOperators) {
  for (const Checkpoint mode : kModes) {
    GPipe pipeline(Sequential(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3)),
                   options({1, 1}, 2, mode));
    torch::manual_seed(5);
    const Tensor before = state();
    pipeline->forward(torch::ones({4, 3})).sum().backward();
    EXPECT_TRUE(torch::equal(state(), before));
  }
}

TEST(DefaultGenerator, IsLeftAloneByDropoutThatIsOff) {
  GPipe pipeline(dropouts(), options({1, 2}, 2, Checkpoint::kAlways));
  pipeline->eval();
  torch::manual_seed(5);
  const Tensor before = state();
  pipeline->forward(torch::ones({4, 3}));
  EXPECT_TRUE(torch::equal(state(), before));
}

TEST(DefaultGenerator, AdvancesByOneDrawPerForward) {
  for (const Checkpoint mode : kModes) {
    for (const auto& balance :
         std::vector<std::vector<int64_t>>{{3}, {1, 2}, {1, 1, 1}}) {
      GPipe pipeline(dropouts(), options(balance, 4, mode));
      torch::manual_seed(5);
      for (int forwards = 1; forwards <= 3; ++forwards) {
        const Tensor x = torch::ones({8, 3}).requires_grad_();
        pipeline->forward(x).sum().backward();
        const Tensor actual = state();
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
  const Tensor x = torch::ones({4, 50});
  GPipe pipeline(dropouts(), options({1, 2}, 2, Checkpoint::kNever));
  torch::manual_seed(7);
  const Tensor output = pipeline->forward(x);
  EXPECT_FALSE(torch::equal(output, pipeline->forward(x)));
  EXPECT_FALSE(torch::equal(output.narrow(0, 0, 2), output.narrow(0, 2, 2)));
  torch::manual_seed(8);
  EXPECT_FALSE(torch::equal(output, pipeline->forward(x)));
  // Equal masks in all layers would leave half of the elements.
  EXPECT_LT((output != 0).sum().item<int64_t>(), 60);
}

TEST(Random, HasTheRightDistribution) {
  GPipe pipeline(Sequential(torch::nn::Dropout(0.25)),
                 options({1}, 10, Checkpoint::kNever));
  torch::manual_seed(0);
  const Tensor output = pipeline->forward(torch::ones({1000, 100}));
  EXPECT_NEAR((output == 0).to(torch::kFloat).mean().item<double>(), 0.25,
              0.01);
  EXPECT_NEAR(output.mean().item<double>(), 1.0, 0.01);
}

TEST(Random, IsReplayedInTheRecompute) {
  for (const Checkpoint mode : kModes) {
    GPipe pipeline(
        Sequential(layer([](Tensor x) { return x * torch::rand_like(x); }),
                   layer([](Tensor x) { return x * torch::rand(x.sizes()); })),
        options({1, 1}, 4, mode));
    const Tensor x = torch::ones({8, 6}).requires_grad_();
    auto output = pipeline->forward(x);
    torch::rand({3});  // The default generator has moved on.
    output.sum().backward({}, /*retain_graph=*/true);
    EXPECT_TRUE(torch::allclose(x.grad(), output));
    output.sum().backward();
    EXPECT_TRUE(torch::allclose(x.grad(), 2 * output));
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
  auto own = at::detail::createCPUGenerator(11);
  GPipe pipeline(Sequential(layer([&](Tensor x) {
                   return x + torch::rand(x.sizes(), own);
                 })),
                 options({1}, 1, Checkpoint::kNever));
  const Tensor before = state();
  const Tensor output = pipeline->forward(torch::zeros({4}));
  auto twin = at::detail::createCPUGenerator(11);
  EXPECT_TRUE(torch::equal(output, torch::rand({4}, twin)));
  EXPECT_TRUE(torch::equal(state(), before));
}

TEST(Random, OfTwoPipelinesAtTheSameTimeIsReplayedByEach) {
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      GPipe pipeline(dropouts(), options({1, 1, 1}, 4, Checkpoint::kAlways));
      for (int k = 0; k < 50; ++k) {
        const Tensor x = torch::ones({8, 6}).requires_grad_();
        const Tensor output = pipeline->forward(x);
        output.sum().backward();
        right += torch::equal(output, x.grad());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 100);
}

TEST(Random, OutsideOfAPipelineIsUntouched) {
  torch::manual_seed(7);
  const Tensor plain = torch::rand({5});
  run(dropouts(), {1, 2}, Checkpoint::kAlways, 3);
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(torch::rand({5}), plain));
  EXPECT_EQ(RandomScope::current(), nullptr);
}

}  // namespace
}  // namespace gpipe
