// Tests that the graph of a pipeline's output behaves as in plain LibTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using testing::device;
using testing::error_of;
using testing::grads_of;
using ::testing::HasSubstr;
using testing::kModes;
using testing::layer;
using testing::leaf_of;
using testing::options;
using testing::reference_device;
using ::testing::StartsWith;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;

Tensor values(torch::IntArrayRef sizes) {
  return torch::randn(sizes, torch::kDouble);
}

void expect_near(const Tensors& actual, const Tensors& expected) {
  EXPECT_LE(testing::distance(actual, expected), 1e-12);
}

// A layer with parameters on its device, and factors on the CPU.
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    for (int k = 0; k < 40; ++k) {
      weights.push_back(register_parameter("weight" + std::to_string(k),
                                           torch::ones({4}, torch::kDouble)));
      factors.push_back(
          torch::ones({}, torch::dtype(torch::kDouble).requires_grad(true)));
    }
  }
  Tensor forward(const Tensor& x) {
    Tensor sum = x;
    for (std::size_t k = 0; k < weights.size(); ++k) {
      sum = sum + x * weights[k] * factors[k];
    }
    return sum;
  }
  Tensors weights, factors;
};
TORCH_MODULE(Mixed);

// The engine computes gradients of each device on a thread of its own.
TEST(Autograd, LeavesOfALayerMayBeOnSeveralDevices) {
  Mixed mixed;
  GPipe pipeline(torch::nn::Sequential(mixed), options({1}, 4));
  const Tensor x = torch::ones({8, 4}, torch::kDouble).to(device());
  for (int step = 0; step < 20; ++step) {
    pipeline->zero_grad();
    for (Tensor& each : mixed->factors) each.mutable_grad() = Tensor();
    pipeline->train_step(
        x, x,
        [](const Tensor& y, const Tensor& /*target*/) { return y.mean(); },
        one_forward_one_backward(1, 4));
    for (std::size_t k = 0; k < mixed->weights.size(); ++k) {
      ASSERT_TRUE(mixed->factors[k].grad().defined()) << k;
      ASSERT_TRUE(mixed->weights[k].grad().defined()) << k;
      EXPECT_EQ(mixed->factors[k].grad().item<double>(), 1) << k;
      EXPECT_TRUE((mixed->weights[k].grad() == 0.25).all().item<bool>()) << k;
    }
  }
}

// A model and its input.
template <typename Model>
struct Twin {
  Twin(Model model_in, const Tensor& x_in, const torch::Device& where)
      : model(std::move(model_in)),
        x(leaf_of(x_in, where)),
        wanted(model->parameters()) {
    wanted.push_back(x);
  }
  Tensor forward() { return model->forward(x); }
  void zero_grad() {
    for (Tensor& each : wanted) each.mutable_grad() = Tensor();
  }

  Model model;
  Tensor x;
  Tensors wanted;  // the parameters and x
};

// linear_model() and a pipeline with the same layers. A parameter is on one
// device only, so model and pipeline have separate parameters with the same
// values.
struct Twins {
  explicit Twins(Checkpoint mode, int64_t chunks = 3)
      : plain(seeded(), input(), reference_device()),
        pipeline(GPipe(seeded(), options({2, 2, 2}, chunks, mode)), input(),
                 device()) {
    plain.model->to(reference_device());
  }

  static torch::nn::Sequential seeded() {
    torch::manual_seed(0);
    return testing::linear_model();
  }
  static Tensor input() {
    torch::manual_seed(1);
    return values({7, 6});
  }

  Twin<torch::nn::Sequential> plain;
  Twin<GPipe> pipeline;
};

TEST(Grad, OfParametersAndInputEqualsPlainAndLeavesDotGradAlone) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    const auto run = [](auto& twin) {
      const auto grads =
          torch::autograd::grad({twin.forward().sum()}, twin.wanted);
      for (const Tensor& each : twin.wanted) {
        EXPECT_FALSE(each.grad().defined());
      }
      return grads;
    };
    expect_near(run(twins.pipeline), run(twins.plain));
  }
}

TEST(Grad, OfTheInputAloneEqualsPlain) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    const auto run = [](auto& twin) {
      return torch::autograd::grad({twin.forward().sum()}, {twin.x});
    };
    expect_near(run(twins.pipeline), run(twins.plain));
  }
}

TEST(Grad, OfANonLeafInputReachesWhatIsBeforeThePipeline) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    const auto run = [](auto& twin) {
      return torch::autograd::grad({twin.model->forward(twin.x.exp()).sum()},
                                   twin.wanted);
    };
    expect_near(run(twins.pipeline), run(twins.plain));
  }
}

TEST(Grad, ComputesNoMoreThanAsked) {
  for (const Checkpoint mode : kModes) {
    torch::nn::Linear last(2, 2);
    torch::nn::Sequential model;
    model->push_back(torch::nn::Linear(2, 2));
    std::atomic<int> count = 0;
    model->push_back(layer([&count](const Tensor& x) {
      return testing::on_backward(x, [&count](Tensor grad) {
        ++count;
        return grad;
      });
    }));
    model->push_back(last);
    GPipe pipeline(model, options({1, 1, 1}, 2, mode));
    const Tensor x = torch::randn({4, 2}).to(device());
    torch::autograd::grad({pipeline->forward(x).sum()}, {last->weight});
    EXPECT_EQ(count, 0);
    pipeline->forward(x).sum().backward();
    EXPECT_EQ(count, 2);
  }
}

TEST(Grad, OfAnUnusedParameterIsAnErrorAsInPlain) {
  Twins twins(Checkpoint::kAlways);
  const auto run = [](const Tensor& output, const Tensor& x,
                      bool allow_unused) {
    return torch::autograd::grad({output.sum()},
                                 {x, leaf_of(torch::ones({2}), x.device())},
                                 /*grad_outputs=*/{}, /*retain_graph=*/true,
                                 /*create_graph=*/false, allow_unused);
  };
  const auto ours = twins.pipeline.forward();
  const auto plain = twins.plain.forward();
  const auto error = error_of([&] { run(ours, twins.pipeline.x, false); });
  EXPECT_THAT(error, HasSubstr("allow_unused"));
  EXPECT_EQ(error, error_of([&] { run(plain, twins.plain.x, false); }));
  expect_near(run(ours, twins.pipeline.x, true),
              run(plain, twins.plain.x, true));
}

TEST(Backward, AccumulatesIntoDotGrad) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    twins.pipeline.forward().sum().backward();
    const auto once = grads_of(twins.pipeline.wanted);
    twins.pipeline.forward().sum().backward();
    const auto twice = grads_of(twins.pipeline.wanted);
    for (std::size_t k = 0; k < once.size(); ++k) {
      EXPECT_TRUE(torch::equal(twice[k], 2 * once[k]));
    }
  }
}

// Adds two parameters of other shapes, whose gradients are views of one tensor.
struct AddTwoImpl : torch::nn::Module {
  AddTwoImpl() {
    a = register_parameter("a", values({1, 6}));
    b = register_parameter("b", values({6}));
  }
  Tensor forward(const Tensor& x) { return x + a + b.view({1, 6}); }
  Tensor a, b;
};
TORCH_MODULE(AddTwo);

TEST(Backward, GradientsThatAreOneTensorShareNoMemory) {
  const auto schedule = one_forward_one_backward(1, 1);
  const auto mean = [](const Tensor& output, const Tensor&) {
    return output.mean();
  };
  for (const bool in_steps : {false, true}) {
    AddTwo two;
    GPipe pipeline(torch::nn::Sequential(two), options({1}, 1));
    const Tensor x = leaf_of(values({1, 6}), device());
    const Tensors leaves = {two->a, two->b, x};
    const auto step = [&] {
      if (in_steps) {
        pipeline->train_step(x, x.detach(), mean, schedule);
      } else {
        pipeline->forward(x).mean().backward();
      }
    };
    step();
    for (const Tensor& each : leaves) each.mutable_grad().mul_(6);
    for (const Tensor& each : leaves) {
      EXPECT_TRUE(torch::equal(each.grad(), torch::ones_like(each)));
    }
    step();
    for (const Tensor& each : leaves) {
      EXPECT_TRUE(
          torch::equal(each.grad(), torch::full_like(each, 1 + 1.0 / 6)));
    }
  }
}

TEST(Backward, TwiceWithRetainGraphDoublesGradients) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    auto loss = twins.pipeline.forward().sum();
    loss.backward({}, /*retain_graph=*/true);
    const auto once = grads_of(twins.pipeline.wanted);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    const auto thrice = grads_of(twins.pipeline.wanted);
    for (std::size_t k = 0; k < once.size(); ++k) {
      EXPECT_TRUE(torch::equal(thrice[k], once[k] + once[k] + once[k]));
    }
  }
}

TEST(Backward, TwiceWithoutRetainGraphIsLibTorchsError) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    const auto twice = [](auto& twin) {
      auto loss = twin.forward().sum();
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
    const Tensor other = values({4, 6});
    const auto run = [&](auto& twin, auto backward) {
      twin.zero_grad();
      backward(
          twin.forward().sum(),
          twin.model->forward(leaf_of(other, twin.x.device())).pow(2).sum());
      return grads_of(twin.wanted);
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
    auto first = twins.pipeline.forward().sum();
    first.backward({}, /*retain_graph=*/true);
    const auto once = grads_of(twins.pipeline.wanted);
    twins.pipeline.model->forward(leaf_of(values({3, 6}), device())).sum();
    twins.pipeline.zero_grad();
    first.backward();
    const auto again = grads_of(twins.pipeline.wanted);
    EXPECT_EQ(testing::difference(again, once), "");
  }
}

TEST(Backward, OfSomeRowsEqualsPlain) {
  for (const Checkpoint mode : kModes) {
    for (const int64_t row : {0, 3, 6}) {
      Twins twins(mode);
      const auto run = [&](auto& twin) {
        twin.zero_grad();
        twin.forward()[row].sum().backward();
        return grads_of(twin.wanted);
      };
      expect_near(run(twins.pipeline), run(twins.plain));
    }
  }
}

// A model whose layers have captured modules. The pipeline does not know of
// captured modules and does not move them. So they are on the device of their
// layer from the beginning.
struct TwoOutputs {
  TwoOutputs(const torch::Device& where_first,
             const torch::Device& where_second) {
    first->to(where_first, torch::kDouble);
    second->to(where_second, torch::kDouble);
    model = torch::nn::Sequential(
        layer<Pair>([first = first](Tensor x) mutable {
          return Pair(first(x), x.sin());
        }),
        layer<Pair, Pair>([second = second](Pair pair) mutable {
          const auto& [a, b] = pair;
          return Pair(a * 2, second(b));
        }));
  }
  torch::nn::Linear first{3, 3}, second{3, 3};
  torch::nn::Sequential model;
};

TEST(Backward, OfOneOfTwoOutputsEqualsPlain) {
  for (const Checkpoint mode : kModes) {
    torch::manual_seed(0);
    TwoOutputs plain(reference_device(), reference_device());
    torch::manual_seed(0);
    TwoOutputs ours(device(0), device(1));
    GPipe pipeline(ours.model, options({1, 1}, 2, mode));
    const Tensor x = values({4, 3});
    for (const int wanted : {0, 1}) {
      const auto run = [&](auto& model, const TwoOutputs& layers,
                           const torch::Device& where) {
        const Tensor input = leaf_of(x, where);
        const Pair output = model->template forward<Pair>(input);
        return torch::autograd::grad(
            {(wanted == 0 ? std::get<0>(output) : std::get<1>(output)).sum()},
            {input, layers.first->weight, layers.second->weight}, {}, false,
            false, /*allow_unused=*/true);
      };
      expect_near(run(pipeline, ours, device()),
                  run(plain.model, plain, reference_device()));
    }
  }
}

TEST(Backward, ReachesALeafThatALayerHasCaptured) {
  torch::manual_seed(0);
  for (const Checkpoint mode : kModes) {
    const Tensor factor = values({3});
    const Tensor x = values({5, 3});
    const auto model_with = [](const Tensor& captured) {
      return torch::nn::Sequential(
          layer([](Tensor x) { return x.tanh(); }),
          layer([captured](Tensor x) { return x * captured; }));
    };
    const Tensor plain = leaf_of(factor, reference_device());
    const Tensor ours = leaf_of(factor, device(1));
    GPipe pipeline(model_with(ours), options({1, 1}, 3, mode));
    expect_near(
        torch::autograd::grad({pipeline->forward(x.to(device())).sum()},
                              {ours}),
        torch::autograd::grad(
            {model_with(plain)->forward(x.to(reference_device())).sum()},
            {plain}));
  }
}

// A captured tensor may have a graph of its own, which all micro-batches share.
TEST(Backward, ReachesWhatIsBehindACapturedTensor) {
  torch::manual_seed(0);
  for (const Checkpoint mode : kModes) {
    const Tensor exponent = values({3});
    const Tensor x = values({5, 3});
    const auto model_with = [](const Tensor& captured) {
      return torch::nn::Sequential(
          layer([captured](Tensor x) { return x * captured; }));
    };
    const Tensor plain = leaf_of(exponent, reference_device());
    const Tensor ours = leaf_of(exponent, device());
    const Tensor captured = ours.exp();
    GPipe pipeline(model_with(captured), options({1}, 1, mode));
    expect_near(
        torch::autograd::grad({pipeline->forward(x.to(device())).sum()},
                              {ours}),
        torch::autograd::grad(
            {model_with(plain.exp())->forward(x.to(reference_device())).sum()},
            {plain}));
    // The second micro-batch needs the captured graph, which the first one
    // freed.
    torch::nn::Sequential model(
        layer([](Tensor x) { return x + 1; }),
        layer([captured](Tensor x) { return (x + 1) * captured; }),
        layer([](Tensor x) { return x + 1; }));
    GPipe halves(model, options({3}, 2, mode));
    EXPECT_THAT(
        error_of([&] { halves->forward(x.to(device())).sum().backward(); }),
        StartsWith(
            "c10::Error: layer '1' uses a tensor that has been computed "
            "outside of the pipeline (by ExpBackward0), whose graph "
            "autograd has freed after an earlier backward. Each "
            "micro-batch of each step runs that graph again. Compute "
            "the tensor in the layer, or make it a leaf "
            "(detach().requires_grad_()) (in partition 0, micro-batch "));
  }
}

// A member that one partition writes and another reads: its gradient would not
// reach the cell that made it.
TEST(Backward, ThroughAMemberOfAnotherPartitionIsRefused) {
  if (!device().is_cpu()) {
    GTEST_SKIP() << "two streams would use the member in no order";
  }
  torch::manual_seed(0);
  for (const Checkpoint mode : kModes) {
    torch::nn::Linear linear(3, 3);
    linear->to(torch::kDouble);
    Tensor member;
    const auto model = [&] {
      return torch::nn::Sequential(
          linear, layer([&](Tensor x) { return member = x.tanh(); }),
          layer([&](Tensor x) { return x * member.to(x.device()); }));
    };
    GPipe pipeline(model(), options({2, 1}, 2, mode).one_at_a_time(true));
    const Tensor x = values({4, 3}).to(device());
    EXPECT_THAT(error_of([&] { pipeline->forward(x); }),
                AllOf(StartsWith("c10::Error: layer '2' uses a tensor that a "
                                 "layer of partition 0 has computed (by "),
                      HasSubstr("skip tensor (gpipe/skip.h)")));
    // The layers of one partition may share a member.
    GPipe whole(model(), options({3}, 2, mode));
    whole->forward(x).sum().backward();
  }
}

// A graph without saved tensors may be used by many micro-batches, but not by
// two workers at a time.
TEST(Backward, OfACapturedGraphIsForOnePartition) {
  torch::manual_seed(0);
  const Tensor x = values({6, 3});
  const auto model_with = [](const Tensor& captured) {
    return torch::nn::Sequential(
        layer([captured](Tensor x) { return x.mm(captured).tanh(); }),
        layer([captured](Tensor x) { return x.mm(captured); }));
  };
  const Tensor plain = leaf_of(values({3, 3}), reference_device());
  const auto expected = torch::autograd::grad(
      {model_with(plain.t())->forward(x.to(reference_device())).sum()},
      {plain});
  for (const Checkpoint mode : kModes) {
    const Tensor ours = leaf_of(plain, device());
    const std::vector<torch::Device> here(2, device());
    const auto grads = [&](std::vector<int64_t> balance, int64_t chunks) {
      GPipe pipeline(model_with(ours.t()),
                     options(balance, chunks, mode).devices(here));
      return torch::autograd::grad({pipeline->forward(x.to(device())).sum()},
                                   {ours});
    };
    expect_near(grads({2}, 3), expected);
    // One micro-batch is refused, too: while one partition runs its backward,
    // the other one may recompute its forward.
    for (const int64_t chunks : {1, 3}) {
      EXPECT_THAT(
          error_of([&] {
            grads({1, 1}, chunks);
          }),
          HasSubstr("layers of partitions 0 and 1 use a tensor that has "
                    "been computed outside of the pipeline (by TBackward0)"));
    }
  }
}

TEST(Backward, WorksAfterThePipelineIsGone) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    auto loss = twins.pipeline.forward().sum();
    twins.pipeline.model = nullptr;
    loss.backward();
    twins.plain.forward().sum().backward();
    expect_near(grads_of(twins.pipeline.wanted), grads_of(twins.plain.wanted));
  }
}

TEST(Backward, RefusesCreateGraph) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    EXPECT_THAT(error_of([&] {
                  torch::autograd::grad(
                      {twins.pipeline.forward().sum()}, {twins.pipeline.x}, {},
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
    Tensor weight = twins.pipeline.wanted[0];
    weight.register_hook([&](Tensor grad) {
      seen.push_back(grad.clone());
      return 2 * grad;
    });
    twins.pipeline.forward().sum().backward();
    ASSERT_EQ(seen.size(), 1u);
    EXPECT_TRUE(torch::equal(weight.grad(), 2 * seen[0]));
  }
}

TEST(Hook, OfTheInputSeesAllRowsOnce) {
  for (const Checkpoint mode : kModes) {
    Twins twins(mode);
    Tensors seen;
    twins.pipeline.x.register_hook([&](Tensor grad) { seen.push_back(grad); });
    twins.pipeline.forward().sum().backward();
    ASSERT_EQ(seen.size(), 1u);
    EXPECT_TRUE(torch::equal(seen[0], twins.pipeline.x.grad()));
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
        twins.pipeline.wanted[2], std::make_unique<Count>(count));
    twins.pipeline.forward().sum().backward();
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
    const Tensor x = values({4, 3});
    const auto run = [](auto& module, const Tensor& input) {
      return torch::autograd::grad({module->forward(input).sum()}, {input});
    };
    expect_near(run(pipeline, leaf_of(x, device())),
                run(model, leaf_of(x, reference_device())));
  }
}

// A layer with a loss of its own, for a weight that no other operator uses.
struct ProbedImpl : torch::nn::Module {
  Tensor forward(Tensor x) {
    (x.detach() * probe).pow(2).sum().backward();
    return (x * weight).sin();
  }
  Tensor probe = register_parameter("probe", torch::linspace(1, 2, 4));
  Tensor weight = register_parameter("weight", torch::linspace(2, 1, 4));
};
TORCH_MODULE(Probed);

TEST(Autograd, ABackwardInALayerCountsOnceAlsoInARecompute) {
  torch::manual_seed(4);
  const Tensor x = values({4, 4});
  const auto gradients = [&](Checkpoint mode) {
    torch::nn::Sequential model{Probed(), Probed()};
    model->to(torch::kDouble);
    GPipe pipeline(model, options({1, 1}, 2, mode));
    for (int k = 0; k < 2; ++k) {
      pipeline->forward(x.to(device())).sum().backward();
    }
    return grads_of(*model);
  };
  const Tensors expected = gradients(Checkpoint::kNever);
  for (const Checkpoint mode : kModes) {
    EXPECT_EQ(testing::difference(gradients(mode), expected), "");
  }
}

// In a plain model such a gradient reaches the input. A cell's input is not the
// caller's tensor.
TEST(Autograd, ABackwardThroughTheInputOfAPartitionIsRefused) {
  const auto lost = HasSubstr("so that this gradient would be lost");
  for (const Checkpoint mode : kModes) {
    for (const bool leaf : {false, true}) {
      Tensor kept;
      torch::nn::Sequential model{
          testing::layer([&](Tensor h) {
            const Tensor y = h * 3;
            if (!is_recomputing()) kept = y.sum();
            return y.exp();
          }),
          testing::layer([](Tensor h) { return h.sin(); })};
      GPipe pipeline(model, options({1, 1}, 1, mode));
      Tensor x = values({4, 4}).to(device()).requires_grad_();
      if (!leaf) x = x * 1;
      const Tensor y = pipeline->forward(x);
      EXPECT_THAT(
          error_of([&] { (y.sum().to(kept.device()) + kept).backward(); }),
          lost);
      torch::nn::Sequential inside{testing::layer([](Tensor h) {
        if (!is_recomputing()) (h * 5).sum().backward();
        return h * 1;
      })};
      GPipe other(inside, options({1}, 1, mode));
      EXPECT_THAT(error_of([&] { other->forward(x); }), lost);
    }
  }
}

// A layer whose micro-batches depend on each other, which no cell can see.
TEST(Autograd, NamesALayerThatKeepsATensorWithGraphForTheNextMicrobatch) {
  for (const Checkpoint mode :
       {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    for (const bool detached : {false, true}) {
      Tensor state;
      torch::nn::Sequential model;
      model->push_back("first", torch::nn::Linear(4, 4));
      model->push_back("second", torch::nn::Linear(4, 4));
      model->push_back("carry", testing::layer([&](Tensor x) {
                         const Tensor y = state.defined() ? x + state : x * 1;
                         state = detached ? y.detach() : y;
                         return y;
                       }));
      model->push_back("last", torch::nn::Linear(4, 4));
      GPipe pipeline(model, testing::options({1, 3}, 2, mode));
      const Tensor x = torch::ones({2, 4}).to(testing::device());
      const std::string error =
          testing::error_of([&] { pipeline->forward(x); });
      if (detached) {
        EXPECT_EQ(error, "");
        continue;
      }
      EXPECT_EQ(
          error.find("c10::Error: layer 'carry' of partition 1 uses a tensor "
                     "that depends on the input of another micro-batch"),
          0u)
          << error;
      ASSERT_TRUE(pipeline->last_failure().has_value());
      EXPECT_EQ(pipeline->last_failure()->layer, "carry");
      EXPECT_EQ(pipeline->last_failure()->microbatch, 1);
    }
  }
}

}  // namespace
}  // namespace gpipe
