// How long skip tensors live: until the layer that pops them drops them, and
// never on the partitions between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/skip.h"
#include "gpipe/testing/layers.h"

namespace gpipe {
namespace {

using testing::layer;
using torch::Tensor;
using torch::nn::Sequential;

constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast,
                                 Checkpoint::kNever};

// Counts the skip tensors whose memory is alive.
struct Lives {
  std::atomic<int> now{0};
  std::mutex mutex;
  std::vector<int> seen;  // by the layer after the one that pops

  Tensor make(const Tensor& like) {
    ++now;
    auto* values = new std::vector<float>(like.numel(), 1.f);
    return torch::from_blob(
        values->data(), like.sizes(),
        [this, values](void*) {
          delete values;
          --now;
        },
        torch::kFloat);
  }
  void look() {
    std::lock_guard<std::mutex> lock(mutex);
    seen.push_back(now);
  }
};

struct StashImpl : torch::nn::Module, Skippable {
  explicit StashImpl(Lives& lives) : Skippable({{"skip"}, {}}), lives(lives) {}
  Tensor forward(Tensor x) {
    stash("skip", lives.make(x));
    return x * 1;
  }
  Lives& lives;
};
TORCH_MODULE(Stash);

// Adds, whose backward needs no operand.
struct PopImpl : torch::nn::Module, Skippable {
  PopImpl() : Skippable({{}, {"skip"}}) {}
  Tensor forward(Tensor x) { return x + *pop("skip"); }
};
TORCH_MODULE(Pop);

Sequential model(Lives& lives) {
  return Sequential(Stash(lives), layer([](Tensor x) { return x * 1; }), Pop(),
                    layer([&](Tensor x) {
                      lives.look();
                      return x * 1;
                    }));
}

TEST(SkipTensor, DiesAtThePopWithoutCheckpointing) {
  for (const auto& balance :
       std::vector<std::vector<int64_t>>{{4}, {1, 3}, {1, 1, 2}, {2, 2}}) {
    Lives lives;
    GPipe pipeline(model(lives),
                   GPipeOptions(balance).checkpoint(Checkpoint::kNever));
    const Tensor x = torch::ones({2}).requires_grad_();
    auto output = pipeline->forward(x);
    EXPECT_THAT(lives.seen, ::testing::ElementsAre(0));
    output.sum().backward();
    EXPECT_EQ(lives.now, 0);
  }
}

TEST(SkipTensor, DiesAtThePopWithoutGradientsInEveryMode) {
  torch::NoGradGuard no_grad;
  for (const Checkpoint mode : kModes) {
    Lives lives;
    GPipe pipeline(model(lives), GPipeOptions({1, 1, 2}).checkpoint(mode));
    pipeline->forward(torch::ones({2}));
    EXPECT_THAT(lives.seen, ::testing::ElementsAre(0));
    EXPECT_EQ(lives.now, 0);
  }
}

// The recompute of the popping cell needs it once more; what a recompute of
// the stashing cell makes is for nobody.
TEST(SkipTensor, LivesUntilTheBackwardOfACheckpointedPop) {
  for (const auto& balance :
       std::vector<std::vector<int64_t>>{{1, 3}, {1, 1, 2}, {2, 2}}) {
    Lives lives;
    GPipe pipeline(model(lives), GPipeOptions(balance).chunks(3).checkpoint(
                                     Checkpoint::kAlways));
    const Tensor x = torch::ones({3}).requires_grad_();
    auto output = pipeline->forward(x);
    EXPECT_EQ(lives.now, 3);
    output.sum().backward();
    EXPECT_EQ(lives.now, 0);
    EXPECT_TRUE(torch::equal(x.grad(), torch::ones({3})));
  }
}

TEST(SkipTensor, IsFreedWhenTheGraphIsDropped) {
  for (const Checkpoint mode : kModes) {
    Lives lives;
    GPipe pipeline(model(lives),
                   GPipeOptions({1, 1, 2}).chunks(3).checkpoint(mode));
    pipeline->forward(torch::ones({3}).requires_grad_());
    EXPECT_EQ(lives.now, 0);
  }
}

TEST(SkipTensor, IsFreedWhenALayerFails) {
  for (const Checkpoint mode : kModes) {
    Lives lives;
    GPipe pipeline(Sequential(Stash(lives), layer([](Tensor x) {
                                TORCH_CHECK(current_microbatch() != 1, "no");
                                return x * 1;
                              }),
                              Pop()),
                   GPipeOptions({1, 1, 1}).chunks(3).checkpoint(mode));
    EXPECT_THROW(pipeline->forward(torch::ones({3}).requires_grad_()),
                 c10::Error);
    EXPECT_EQ(lives.now, 0);
  }
}

TEST(SkipTensor, DiesAtThePopInAPlainSequential) {
  Lives lives;
  model(lives)->forward(torch::ones({2}));
  EXPECT_THAT(lives.seen, ::testing::ElementsAre(0));
}

}  // namespace
}  // namespace gpipe
