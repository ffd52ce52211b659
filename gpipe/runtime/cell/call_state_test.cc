#include "gpipe/runtime/cell/call_state.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using testing::error_of;
using torch::Tensor;

TEST(KeptTensor, ReturnsALeafWithTheValuesAndNoGraph) {
  const Tensor input = torch::ones({2}).requires_grad_() * 3;
  const KeptTensor kept(input);
  const Tensor leaf = kept.get();
  EXPECT_TRUE(leaf.is_leaf());
  EXPECT_TRUE(leaf.requires_grad());
  EXPECT_TRUE(leaf.equal(input));
  EXPECT_FALSE(KeptTensor(input.detach()).get().requires_grad());
  EXPECT_FALSE(KeptTensor(Tensor()).get().defined());
}

TEST(UseAutocast, SetsTheStateOfTheFirstCallAndRestoresTheOther) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const AutocastState on;
  at::autocast::set_autocast_enabled(at::kCPU, false);
  {
    const UseAutocast use(on);
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

// A tracker that holds one tensor per key.
struct Store : SkipTracker {
  std::map<SkipKey, std::optional<Tensor>> held;
  void save(const SkipKey& key, std::optional<Tensor> tensor) override {
    held[key] = std::move(tensor);
  }
  std::optional<Tensor> load(const SkipKey& key) override {
    return held.extract(key).mapped();
  }
};

TEST(CallSkips, ASecondCallPopsWhatTheFirstOnePopped) {
  const SkipKey in{Namespace::none(), "in"}, out{Namespace::none(), "out"};
  Store outer;
  Tensor popped = torch::ones({2});
  outer.save(in, popped);
  CallSkips skips;
  {
    CallSkips::First first(skips, outer,
                           [](const SkipKey& key, const Tensor& tensor) {
                             EXPECT_EQ(key.name, "in");
                             return KeptTensor(tensor);
                           });
    EXPECT_TRUE(first.load(in)->is_same(popped));
    first.save(out, popped);
    first.load(out);  // stashed by the function itself, so not kept
  }
  CallSkips::Second second(skips);
  EXPECT_TRUE(second.load(in)->equal(popped));
  EXPECT_NE(error_of([&] { second.load(in); }), "");
  EXPECT_NE(error_of([&] { second.load(out); }), "");
  second.save(out, popped);
  EXPECT_TRUE(second.load(out)->is_same(popped));
}

}  // namespace
}  // namespace gpipe::internal
