// The graph of a pipeline's output behaves as that of plain LibTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/linear.h>
#include <torch/torch.h>

#include <atomic>
#include <memory>
#include <tuple>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::layer;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;

constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast,
                                 Checkpoint::kNever};

GPipeOptions options(std::vector<int64_t> balance, int64_t chunks,
                     Checkpoint mode) {
  return GPipeOptions(std::move(balance)).chunks(chunks).checkpoint(mode);
}

Tensor leaf(torch::IntArrayRef sizes) {
  return torch::randn(sizes, torch::kDouble).requires_grad_();
}

void expect_near(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t k = 0; k < actual.size(); ++k) {
    ASSERT_EQ(actual[k].defined(), expected[k].defined()) << "element " << k;
    if (!actual[k].defined()) continue;
    EXPECT_LE((actual[k] - expected[k]).abs().max().item<double>(), 1e-12)
        << "element " << k;
  }
}

Tensors grads_of(const Tensors& tensors) {
  Tensors grads;
  for (const Tensor& tensor : tensors) {
    grads.push_back(tensor.grad().defined() ? tensor.grad().clone() : Tensor());
  }
  return grads;
}

// linear_model(), a pipeline of the same layers, and an input.
struct Twins {
  explicit Twins(Checkpoint mode, int64_t chunks = 3)
      : plain(seeded()), pipeline(plain, options({2, 2, 2}, chunks, mode)) {}

  static torch::nn::Sequential seeded() {
    torch::manual_seed(0);
    return testing::linear_model();
  }
  Tensors wanted() const {
    Tensors all = plain->parameters();
    all.push_back(x);
    return all;
  }
  void zero_grad() {
    for (Tensor& each : wanted()) each.mutable_grad() = Tensor();
  }

  torch::nn::Sequential plain;
  GPipe pipeline;
  Tensor x = leaf({7, 6});
};

TEST(Grad, OfParametersAndInputEqualsPlainAndLeavesDotGradAlone) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    const auto wanted = twins.wanted();
    expect_near(
        torch::autograd::grad({twins.pipeline->forward(twins.x).sum()}, wanted),
        torch::autograd::grad({twins.plain->forward(twins.x).sum()}, wanted));
    for (const Tensor& each : wanted) EXPECT_FALSE(each.grad().defined());
  }
}

TEST(Grad, OfTheInputAloneEqualsPlain) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    expect_near(torch::autograd::grad({twins.pipeline->forward(twins.x).sum()},
                                      {twins.x}),
                torch::autograd::grad({twins.plain->forward(twins.x).sum()},
                                      {twins.x}));
  }
}

TEST(Grad, OfANonLeafInputReachesWhatIsBeforeThePipeline) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    const auto wanted = twins.wanted();
    const auto run = [&](auto& model) {
      return torch::autograd::grad({model->forward(twins.x.exp()).sum()},
                                   wanted);
    };
    expect_near(run(twins.pipeline), run(twins.plain));
  }
}

struct CountBackward : torch::autograd::Function<CountBackward> {
  static std::atomic<int> count;
  static Tensor forward(torch::autograd::AutogradContext*, Tensor x) {
    return x.clone();
  }
  static Tensors backward(torch::autograd::AutogradContext*, Tensors grads) {
    ++count;
    return grads;
  }
};
std::atomic<int> CountBackward::count{0};

TEST(Grad, ComputesNoMoreThanAsked) {
  for (const Checkpoint mode : kModes) {
    torch::nn::Linear last(2, 2);
    torch::nn::Sequential model;
    model->push_back(torch::nn::Linear(2, 2));
    model->push_back(layer([](Tensor x) { return CountBackward::apply(x); }));
    model->push_back(last);
    GPipe pipeline(model, options({1, 1, 1}, 2, mode));
    CountBackward::count = 0;
    torch::autograd::grad({pipeline->forward(torch::randn({4, 2})).sum()},
                          {last->weight});
    EXPECT_EQ(CountBackward::count, 0);
    pipeline->forward(torch::randn({4, 2})).sum().backward();
    EXPECT_EQ(CountBackward::count, 2);
  }
}

TEST(Grad, OfAnUnusedParameterIsAnErrorAsInPlain) {
  Twins twins(Checkpoint::kAlways);
  const Tensor unused = leaf({2});
  const auto run = [&](const Tensor& output, bool allow_unused) {
    return torch::autograd::grad({output.sum()}, {twins.x, unused},
                                 /*grad_outputs=*/{}, /*retain_graph=*/true,
                                 /*create_graph=*/false, allow_unused);
  };
  const auto ours = twins.pipeline->forward(twins.x);
  const auto plain = twins.plain->forward(twins.x);
  const auto error = error_of([&] { run(ours, false); });
  EXPECT_THAT(error, HasSubstr("allow_unused"));
  EXPECT_EQ(error, error_of([&] { run(plain, false); }));
  expect_near(run(ours, true), run(plain, true));
}

TEST(Backward, AccumulatesIntoDotGrad) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    twins.pipeline->forward(twins.x).sum().backward();
    const auto once = grads_of(twins.wanted());
    twins.pipeline->forward(twins.x).sum().backward();
    const auto twice = grads_of(twins.wanted());
    for (std::size_t k = 0; k < once.size(); ++k) {
      EXPECT_TRUE(torch::equal(twice[k], 2 * once[k]));
    }
  }
}

TEST(Backward, TwiceWithRetainGraphDoublesGradients) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    auto loss = twins.pipeline->forward(twins.x).sum();
    loss.backward({}, /*retain_graph=*/true);
    const auto once = grads_of(twins.wanted());
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    const auto thrice = grads_of(twins.wanted());
    for (std::size_t k = 0; k < once.size(); ++k) {
      EXPECT_TRUE(torch::equal(thrice[k], once[k] + once[k] + once[k]));
    }
  }
}

TEST(Backward, TwiceWithoutRetainGraphIsLibTorchsError) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    const auto twice = [&](auto& model) {
      auto loss = model->forward(twins.x).sum();
      loss.backward();
      return error_of([&] { loss.backward(); });
    };
    const auto error = twice(twins.pipeline);
    EXPECT_THAT(error, HasSubstr("Trying to backward through the graph a "
                                 "second time"));
    EXPECT_EQ(error, twice(twins.plain));
  }
}

TEST(Backward, OfSeveralForwardsEqualsPlain) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    const Tensor other = leaf({4, 6});
    const auto run = [&](auto& model, auto backward) {
      twins.zero_grad();
      backward(model->forward(twins.x).sum(),
               model->forward(other).pow(2).sum());
      return grads_of(twins.wanted());
    };
    const auto at_once = [](Tensor a, Tensor b) { (a + b).backward(); };
    const auto in_order = [](Tensor a, Tensor b) {
      a.backward();
      b.backward();
    };
    const auto reversed = [](Tensor a, Tensor b) {
      b.backward();
      a.backward();
    };
    const auto expected = run(twins.plain, at_once);
    expect_near(run(twins.pipeline, at_once), expected);
    expect_near(run(twins.pipeline, in_order), expected);
    expect_near(run(twins.pipeline, reversed), expected);
  }
}

TEST(Backward, KeepsAGraphWhileAnotherForwardRuns) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    auto first = twins.pipeline->forward(twins.x).sum();
    first.backward({}, /*retain_graph=*/true);
    const auto once = grads_of(twins.wanted());
    twins.pipeline->forward(leaf({3, 6})).sum();
    twins.zero_grad();
    first.backward();
    const auto again = grads_of(twins.wanted());
    for (std::size_t k = 0; k < once.size(); ++k) {
      EXPECT_TRUE(torch::equal(again[k], once[k]));
    }
  }
}

TEST(Backward, OfSomeRowsEqualsPlain) {
  for (const Checkpoint mode : kModes) {
    for (const int64_t row : {0, 3, 6}) {
      Twins twins(mode);
      const auto run = [&](auto& model) {
        twins.zero_grad();
        model->forward(twins.x)[row].sum().backward();
        return grads_of(twins.wanted());
      };
      expect_near(run(twins.pipeline), run(twins.plain));
    }
  }
}

TEST(Backward, OfOneOfTwoOutputsEqualsPlain) {
  torch::manual_seed(0);
  for (const Checkpoint mode : kModes) {
    torch::nn::Linear first(3, 3), second(3, 3);
    torch::nn::Sequential model(layer<Pair>([first](Tensor x) mutable {
                                  return Pair(first(x), x.sin());
                                }),
                                layer<Pair, Pair>([second](Pair pair) mutable {
                                  const auto& [a, b] = pair;
                                  return Pair(a * 2, second(b));
                                }));
    model->to(torch::kDouble);
    first->to(torch::kDouble);
    second->to(torch::kDouble);
    GPipe pipeline(model, options({1, 1}, 2, mode));
    const Tensor x = leaf({4, 3});
    for (const int wanted : {0, 1}) {
      const auto run = [&](const Pair& output) {
        return torch::autograd::grad(
            {(wanted == 0 ? std::get<0>(output) : std::get<1>(output)).sum()},
            {x, first->weight, second->weight}, {}, false, false,
            /*allow_unused=*/true);
      };
      expect_near(run(pipeline->forward<Pair>(x)),
                  run(model->forward<Pair>(x)));
    }
  }
}

TEST(Backward, ReachesALeafThatALayerHasCaptured) {
  torch::manual_seed(0);
  for (const Checkpoint mode : kModes) {
    const Tensor captured = leaf({3});
    torch::nn::Sequential model(
        layer([](Tensor x) { return x.tanh(); }),
        layer([captured](Tensor x) { return x * captured; }));
    GPipe pipeline(model, options({1, 1}, 3, mode));
    const Tensor x = torch::randn({5, 3}, torch::kDouble);
    expect_near(torch::autograd::grad({pipeline->forward(x).sum()}, {captured}),
                torch::autograd::grad({model->forward(x).sum()}, {captured}));
  }
}

// What a layer has captured may have a graph of its own, which all its
// micro-batches share.
TEST(Backward, ReachesWhatIsBehindACapturedTensor) {
  torch::manual_seed(0);
  for (const Checkpoint mode : kModes) {
    const Tensor weight = leaf({3});
    const Tensor captured = weight.exp();
    torch::nn::Sequential model(
        layer([captured](Tensor x) { return x * captured; }));
    GPipe pipeline(model, options({1}, 1, mode));
    const Tensor x = torch::randn({5, 3}, torch::kDouble);
    const auto expected = torch::autograd::grad(
        {model->forward(x).sum()}, {weight}, {}, /*retain_graph=*/true);
    expect_near(torch::autograd::grad({pipeline->forward(x).sum()}, {weight}),
                expected);
    // A second micro-batch finds it used up.
    GPipe halves(model, options({1}, 2, mode));
    EXPECT_THAT(error_of([&] { halves->forward(x).sum().backward(); }),
                HasSubstr("Trying to backward through the graph a second"));
  }
}

TEST(Backward, WorksAfterThePipelineIsGone) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    auto loss = twins.pipeline->forward(twins.x).sum();
    twins.pipeline = nullptr;
    loss.backward();
    const auto ours = grads_of(twins.wanted());
    twins.zero_grad();
    twins.plain->forward(twins.x).sum().backward();
    expect_near(ours, grads_of(twins.wanted()));
  }
}

TEST(Backward, RefusesCreateGraph) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    EXPECT_THAT(error_of([&] {
                  torch::autograd::grad(
                      {twins.pipeline->forward(twins.x).sum()}, {twins.x}, {},
                      /*retain_graph=*/true, /*create_graph=*/true);
                }),
                HasSubstr("c10::Error: a pipeline cannot be differentiated "
                          "twice: create_graph = true is not supported"));
  }
}

TEST(Hook, OfAParameterSeesTheSumOnce) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    Tensors seen;
    Tensor weight = twins.plain->parameters()[0];
    weight.register_hook([&](Tensor grad) {
      seen.push_back(grad.clone());
      return 2 * grad;
    });
    twins.pipeline->forward(twins.x).sum().backward();
    ASSERT_EQ(seen.size(), 1u);
    EXPECT_TRUE(torch::equal(weight.grad(), 2 * seen[0]));
  }
}

TEST(Hook, OfTheInputSeesAllRowsOnce) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    Tensors seen;
    twins.x.register_hook([&](Tensor grad) { seen.push_back(grad); });
    twins.pipeline->forward(twins.x).sum().backward();
    ASSERT_EQ(seen.size(), 1u);
    EXPECT_TRUE(torch::equal(seen[0], twins.x.grad()));
  }
}

TEST(Hook, AfterAccumulationRunsOnce) {
  struct Count : torch::autograd::PostAccumulateGradHook {
    explicit Count(int& count) : count(count) {}
    void operator()(const torch::autograd::Variable&) override { ++count; }
    int& count;
  };
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    int count = 0;
    torch::autograd::impl::set_post_acc_grad_hooks(
        twins.plain->parameters()[2], std::make_unique<Count>(count));
    twins.pipeline->forward(twins.x).sum().backward();
    EXPECT_EQ(count, 1);
  }
}

TEST(Hook, InsideALayerActsAsInPlain) {
  torch::manual_seed(0);
  for (const Checkpoint mode : kModes) {
    torch::nn::Sequential model(
        layer([](Tensor x) { return x.sin(); }), layer([](Tensor x) {
          auto y = x.tanh();
          y.register_hook([](Tensor grad) { return grad * 3; });
          return y * y;
        }));
    GPipe pipeline(model, options({1, 1}, 2, mode));
    const Tensor x = leaf({4, 3});
    expect_near(torch::autograd::grad({pipeline->forward(x).sum()}, {x}),
                torch::autograd::grad({model->forward(x).sum()}, {x}));
  }
}

}  // namespace
}  // namespace gpipe
