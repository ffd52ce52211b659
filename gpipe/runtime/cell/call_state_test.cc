#include "gpipe/runtime/cell/call_state.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gpipe/runtime/cell/recompute_check.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using testing::error_of;
using torch::Tensor;

TEST(Form, IsEqualForEqualSizesAndDtypes) {
  const Form form(torch::ones({2, 3}));
  EXPECT_EQ(form.text(), "[2, 3] Float");
  EXPECT_EQ(form, Form(torch::zeros({2, 3})));
  EXPECT_NE(form, Form(torch::zeros({3, 2})));
  EXPECT_NE(form, Form(torch::zeros({2, 3}, torch::kLong)));
  EXPECT_EQ(Form(Tensor()).text(), "undefined");
}

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

TEST(KeptTensor, KnowsWhetherItWasChanged) {
  Tensor input = torch::ones({2});
  const KeptTensor kept(input);
  EXPECT_FALSE(kept.is_changed());
  input.add_(1);
  EXPECT_TRUE(kept.is_changed());
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

TEST(ModuleState, GivesBuffersTheirValuesOfTheFirstCall) {
  const auto module = std::make_shared<torch::nn::Module>();
  Tensor changed = module->register_buffer("changed", torch::zeros({2}));
  Tensor other = module->register_buffer("other", torch::zeros({2}));
  ModuleState state(module);
  changed.add_(1);
  state.first_call_done(/*statistics=*/{});
  state.check_unchanged();
  const auto version = changed._version();
  {
    const PastBuffers buffers(state.changed_buffers());
    EXPECT_TRUE(changed.equal(torch::zeros({2})));
    changed.add_(5);  // the second call
  }
  EXPECT_TRUE(changed.equal(torch::ones({2})));
  EXPECT_EQ(changed._version(), version + 1);
  other.add_(1);
  EXPECT_NE(error_of([&] { state.check_unchanged(); }).find("'other'"),
            std::string::npos);
}

TEST(ModuleState, RefusesAModuleThatHasChanged) {
  torch::nn::BatchNorm1d norm(2);
  ModuleState state(norm.ptr());
  state.first_call_done(/*statistics=*/{});
  norm->eval();
  EXPECT_NE(error_of([&] { state.check_unchanged(); }).find("another mode"),
            std::string::npos);
  norm->train();
  {
    const torch::NoGradGuard no_grad;
    norm->running_mean.add_(1);
  }
  EXPECT_NE(error_of([&] { state.check_unchanged(); }).find("running_mean"),
            std::string::npos);
  ModuleState later(norm.ptr());
  {
    const torch::NoGradGuard no_grad;
    norm->weight.add_(1);
  }
  EXPECT_NE(error_of([&] { later.check_unchanged(); }).find("'weight'"),
            std::string::npos);
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
                           [](const Tensor& t) { return KeptTensor(t); });
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
  skips.check_unchanged("before backward");
  popped.add_(1);
  EXPECT_NE(error_of([&] {
              skips.check_unchanged("before backward");
            }).find("'in' has been changed in place before backward"),
            std::string::npos);
}

}  // namespace
}  // namespace gpipe::internal
