#include "gpipe/runtime/recompute/past_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>

#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using torch::Tensor;

TEST(Outline, IsEqualForEqualSizesAndDtypes) {
  const Outline outline(torch::ones({2, 3}));
  EXPECT_EQ(outline, Outline(torch::zeros({2, 3}).requires_grad_()));
  EXPECT_NE(outline, Outline(torch::zeros({3, 2})));
  EXPECT_NE(outline, Outline(torch::zeros({2, 3}, torch::kLong)));
  EXPECT_NE(outline, Outline(torch::Tensor()));
}

TEST(Outline, ComparesRequiresGradIfWanted) {
  const auto outline = [](const torch::Tensor& tensor) {
    return Outline(tensor, /*with_grad=*/true);
  };
  const torch::Tensor tensor = torch::ones({2, 3});
  EXPECT_EQ(outline(tensor), outline(tensor + 1));
  EXPECT_NE(outline(tensor), outline(tensor.clone().requires_grad_()));
  EXPECT_EQ(outline(torch::Tensor()), outline(torch::Tensor()));
}

TEST(Outline, HasAText) {
  const torch::Tensor tensor = torch::ones({2, 3}).requires_grad_();
  EXPECT_EQ(Outline(tensor).text(), "[2, 3] Float");
  EXPECT_EQ(Outline(tensor, /*with_grad=*/true).text(),
            "[2, 3] Float that requires grad");
  EXPECT_EQ(Outline(torch::Tensor()).text(), "undefined");
}

std::string error_of_check(PastCall& past) {
  return error_of([&] { past.check_unchanged(); });
}

TEST(PastCall, RefusesInputsThatWereChanged) {
  Tensor input = torch::ones({2}), skip = torch::ones({2});
  PastCall past("partition 3", ", or use Checkpoint::kNever", nullptr);
  past.watch_input("input 0", input);
  past.watch_input("skip tensor 'a'", skip);
  past.watch_input("input 1", Tensor());
  past.first_call_done({}, /*with_grad=*/true);
  EXPECT_EQ(error_of_check(past), "");
  skip.add_(1);
  EXPECT_THAT(
      error_of([&] { past.first_call_done({}, /*with_grad=*/true); }),
      StartsWith("c10::Error: skip tensor 'a' of partition 3 has been changed "
                 "in place by the forward itself, so that"));
  input.add_(1);
  EXPECT_EQ(error_of_check(past),
            "c10::Error: input 0 of partition 3 has been changed in place "
            "between forward and backward, so that the forward cannot be "
            "computed again with the same value; let the change work out of "
            "place (such as ReLU without inplace), or on a clone, or use "
            "Checkpoint::kNever");
}

TEST(PastCall, RefusesModulesThatHaveChanged) {
  torch::nn::BatchNorm1d norm(2);
  CalledModules modules;
  modules.add("0.", norm.ptr());
  PastCall past("partition 3", "", &modules);
  past.watch_parameter(norm->bias);
  const Tensor captured = torch::ones({2, 3});
  past.watch_parameter(captured);
  norm->eval();
  EXPECT_EQ(error_of_check(past),
            "c10::Error: train() or eval() was called between forward and "
            "backward; partition 3 cannot be computed again in another mode. "
            "Call backward first");
  norm->train();
  EXPECT_EQ(error_of_check(past), "");
  captured.add_(1);
  EXPECT_THAT(error_of_check(past),
              StartsWith("c10::Error: a parameter ([2, 3] Float) of partition "
                         "3 has been changed in place"));
  {
    const torch::NoGradGuard no_grad;
    norm->bias.add_(1);
  }
  EXPECT_EQ(error_of_check(past),
            "c10::Error: parameter '0.bias' ([2] Float) of partition 3 has "
            "been changed in place between forward and backward; the forward "
            "cannot be computed again with it. Call backward first, or forward "
            "again; a tensor that the forward changes itself must be a buffer");
}

struct Buffers : torch::nn::Module {
  Tensor changed = register_buffer("changed", torch::zeros({2}));
  Tensor statistic = register_buffer("statistic", torch::zeros({2}));
  Tensor other = register_buffer("other", torch::zeros({2}));
};

class PastBuffersTest : public ::testing::Test {
 protected:
  PastBuffersTest() {
    modules.add("", module);
    past = PastCall("Buffers", "", &modules);
    module->changed.add_(1);  // the first call
    module->statistic.data().add_(1);
    past.record().statistics = {module->statistic};
  }

  // Expects the values of the three buffers.
  void expect(float changed, float statistic, float other) {
    EXPECT_TRUE(module->changed.equal(torch::full({2}, changed)));
    EXPECT_TRUE(module->statistic.equal(torch::full({2}, statistic)));
    EXPECT_TRUE(module->other.equal(torch::full({2}, other)));
  }

  const std::shared_ptr<Buffers> module = std::make_shared<Buffers>();
  CalledModules modules;
  PastCall past;
};

TEST_F(PastBuffersTest, HaveTheirOldValuesInASecondCall) {
  module->other.add_(7);  // by other code
  past.check_unchanged();
  const int64_t version = module->changed._version();
  {
    const PastBuffers buffers(past.changed_buffers());
    expect(0, 0, 0);
    module->changed.add_(5);  // the second call
  }
  expect(1, 1, 7);
  EXPECT_EQ(module->changed._version(), version + 1);
}

TEST_F(PastBuffersTest, ThatTheCallHasNotChangedMayBeWatchedInstead) {
  past.keep_changed_buffers();
  EXPECT_EQ(past.changed_buffers().size(), 2u);
  module->changed.add_(5);
  module->statistic.add_(5);
  EXPECT_EQ(error_of_check(past), "");
  module->other.add_(1);
  EXPECT_THAT(
      error_of_check(past),
      StartsWith("c10::Error: buffer 'other' ([2] Float) of Buffers has "
                 "been changed in place between forward and backward"));
}

TEST_F(PastBuffersTest, OfOtherSizesAreAnError) {
  module->other.resize_({3});
  EXPECT_EQ(error_of_check(past),
            "c10::Error: buffer 'other' ([3] Float) of Buffers had the sizes "
            "[2] before the forward, which cannot be computed again if buffers "
            "are resized");
}

TEST_F(PastBuffersTest, AreOfNormsIfTheyAreStatistics) {
  const auto are_norms = [this] {
    std::vector<bool> are;
    for (const auto& each : past.changed_buffers()) are.push_back(each.is_norm);
    return are;
  };
  EXPECT_EQ(are_norms(), (std::vector{false, true}));
  modules.add_norm_buffers({module->changed});
  EXPECT_EQ(are_norms(), (std::vector{true, true}));
}

TEST_F(PastBuffersTest, ThatAreRegisteredLaterMayNotChangeInTheSecondCall) {
  Tensor late = module->register_buffer("late", torch::zeros({2}));
  past.first_call_done({}, /*with_grad=*/false);
  late.add_(1);
  const Tensor counter = module->register_buffer("counter", torch::zeros({}));
  past.record().counters = {{counter, torch::zeros({})}};
  past.check_unchanged();
  Tensor(counter).add_(1);
  past.check_outputs({});
  late.add_(1);
  EXPECT_EQ(error_of([&] { past.check_outputs({}); }),
            "c10::Error: buffer 'late' ([2] Float) of Buffers is changed by "
            "the forward, but was registered too late for a recompute to know "
            "its value before; register it in the constructor of its module, "
            "before a pipeline is made of it");
}

TEST_F(PastBuffersTest, IncludeCountersThatAreNoBuffers) {
  const Tensor counter = torch::ones({});
  EXPECT_TRUE(past.record().is_restored(module->changed));
  EXPECT_FALSE(past.record().is_restored(counter));
  past.record().counters = {{counter, torch::zeros({})}};
  const PastBuffers buffers(past.changed_buffers());
  EXPECT_EQ(counter.item<float>(), 0);
  expect(0, 0, 0);
}

TEST(PastCall, RefusesOtherOutputs) {
  const auto past_of = [](const Tensor& output, bool with_grad) {
    PastCall past("a function", "", nullptr);
    past.first_call_done({output, Tensor()}, with_grad);
    return past;
  };
  const Tensor output = torch::ones({2, 3});
  const PastCall past = past_of(output, /*with_grad=*/false);
  past.check_outputs({output.clone().requires_grad_(), Tensor()});
  EXPECT_EQ(error_of([&] { past.check_outputs({output}); }),
            "c10::Error: a function returned 2 tensors in the forward and 1 in "
            "the recompute; a function must do the same in both calls");
  EXPECT_EQ(error_of([&] {
              past.check_outputs({output.t(), Tensor()});
            }),
            "c10::Error: output 0 of a function is [2, 3] Float in the forward "
            "and [3, 2] Float in the recompute; a function must do the same in "
            "both calls");
  const PastCall strict = past_of(output, /*with_grad=*/true);
  EXPECT_THAT(
      error_of([&] {
        strict.check_outputs({output.clone().requires_grad_(), Tensor()});
      }),
      HasSubstr("and [2, 3] Float that requires grad in the recompute"));
}

}  // namespace
}  // namespace gpipe::internal
