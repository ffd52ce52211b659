// Tests how long skip tensors live: until the layer that pops them drops them,
// and never on the partitions between.
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/skip.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/layers.h"

namespace gpipe {
namespace {

using testing::device;
using testing::kModes;
using testing::layer;
using testing::options;
using testing::reference_device;
using torch::Tensor;
using torch::nn::Sequential;

// Counts the skip tensors with live memory: stashed ones, and their copies on
// other devices, which were popped.
class Lives {
 public:
  Tensor make(const Tensor& like) {
    const Tensor skip = torch::ones_like(like, torch::kFloat).detach();
    watch(skip);
    return skip;
  }
  void watch(const Tensor& skip) {
    std::lock_guard<std::mutex> lock(mutex_);
    // This list keeps the address of a freed storage from being reused.
    auto storage = skip.storage().getWeakStorageImpl();
    const bool known =
        std::any_of(storages_.begin(), storages_.end(), [&](const auto& each) {
          return each._unsafe_get_target() == storage._unsafe_get_target();
        });
    if (!known) storages_.push_back(std::move(storage));
  }
  int now() {
    std::lock_guard<std::mutex> lock(mutex_);
    return alive();
  }

  // Records the number of live tensors. The layer after the popping one calls
  // it.
  void look() {
    std::lock_guard<std::mutex> lock(mutex_);
    seen_.push_back(alive());
  }
  const std::vector<int>& seen() const { return seen_; }

 private:
  int alive() const {
    return static_cast<int>(
        std::count_if(storages_.begin(), storages_.end(),
                      [](const auto& each) { return !each.expired(); }));
  }

  std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
  std::vector<int> seen_;
};

struct CountedStashImpl : torch::nn::Module, Skippable {
  explicit CountedStashImpl(Lives& lives)
      : Skippable({{"skip"}, {}}), lives(lives) {}
  Tensor forward(Tensor x) {
    stash("skip", lives.make(x));
    return x * 1;
  }
  Lives& lives;
};
TORCH_MODULE(CountedStash);

// A layer that adds, since the backward of an addition needs no operand.
struct CountedPopImpl : torch::nn::Module, Skippable {
  explicit CountedPopImpl(Lives& lives)
      : Skippable({{}, {"skip"}}), lives(lives) {}
  Tensor forward(Tensor x) {
    const Tensor skip = *pop("skip");
    lives.watch(skip);
    return x + skip;
  }
  Lives& lives;
};
TORCH_MODULE(CountedPop);

Sequential model(Lives& lives) {
  return Sequential(CountedStash(lives), layer([](Tensor x) { return x * 1; }),
                    CountedPop(lives), layer([&](Tensor x) {
                      lives.look();
                      return x * 1;
                    }));
}

Tensor leaf(int64_t size) {
  return torch::ones({size}).to(device()).requires_grad_();
}

TEST(SkipTensor, DiesAtThePopWithoutCheckpointing) {
  for (const auto& balance :
       std::vector<std::vector<int64_t>>{{4}, {1, 3}, {1, 1, 2}, {2, 2}}) {
    Lives lives;
    GPipe pipeline(model(lives), options(balance, 1, Checkpoint::kNever));
    auto output = pipeline->forward(leaf(2));
    EXPECT_THAT(lives.seen(), ::testing::ElementsAre(0));
    output.sum().backward();
    EXPECT_EQ(lives.now(), 0);
  }
}

TEST(SkipTensor, DiesAtThePopWithoutGradientsInEveryMode) {
  torch::NoGradGuard no_grad;
  for (const Checkpoint mode : kModes) {
    Lives lives;
    GPipe pipeline(model(lives), options({1, 1, 2}, 1, mode));
    pipeline->forward(torch::ones({2}).to(device()));
    EXPECT_THAT(lives.seen(), ::testing::ElementsAre(0));
    EXPECT_EQ(lives.now(), 0);
  }
}

// The recompute of the popping cell needs the tensor again. The one that a
// recompute of the stashing cell makes is not used.
TEST(SkipTensor, LivesUntilTheBackwardOfACheckpointedPop) {
  for (const auto& balance :
       std::vector<std::vector<int64_t>>{{1, 3}, {1, 1, 2}, {2, 2}}) {
    Lives lives;
    GPipe pipeline(model(lives), options(balance, 3, Checkpoint::kAlways));
    const Tensor x = leaf(3);
    auto output = pipeline->forward(x);
    EXPECT_EQ(lives.now(), 3);
    output.sum().backward();
    EXPECT_EQ(lives.now(), 0);
    EXPECT_TRUE(torch::equal(x.grad().cpu(), torch::ones({3})));
  }
}

TEST(SkipTensor, IsFreedWhenTheGraphIsDropped) {
  for (const Checkpoint mode : kModes) {
    Lives lives;
    GPipe pipeline(model(lives), options({1, 1, 2}, 3, mode));
    pipeline->forward(leaf(3));
    EXPECT_EQ(lives.now(), 0);
  }
}

TEST(SkipTensor, IsFreedWhenALayerFails) {
  for (const Checkpoint mode : kModes) {
    Lives lives;
    GPipe pipeline(Sequential(CountedStash(lives), layer([](Tensor x) {
                                TORCH_CHECK(current_microbatch() != 1, "no");
                                return x * 1;
                              }),
                              CountedPop(lives)),
                   options({1, 1, 1}, 3, mode));
    EXPECT_THROW(pipeline->forward(leaf(3)), c10::Error);
    EXPECT_EQ(lives.now(), 0);
  }
}

// The output, and so the graph, still exists then.
TEST(SkipTensor, IsFreedWhenARecomputeFails) {
  Lives lives;
  GPipe pipeline(
      Sequential(CountedStash(lives), layer([](Tensor x) {
                   TORCH_CHECK(!is_recomputing() || current_microbatch() != 1,
                               "no");
                   return x * 1;
                 }),
                 CountedPop(lives)),
      options({1, 1, 1}, 3, Checkpoint::kAlways));
  const Tensor output = pipeline->forward(leaf(3));
  EXPECT_EQ(lives.now(), 3);
  EXPECT_THROW(output.sum().backward(), c10::Error);
  EXPECT_EQ(lives.now(), 0);
}

TEST(SkipTensor, DiesAtThePopInAPlainSequential) {
  Lives lives;
  model(lives)->forward(torch::ones({2}).to(reference_device()));
  EXPECT_THAT(lives.seen(), ::testing::ElementsAre(0));
}

}  // namespace
}  // namespace gpipe
