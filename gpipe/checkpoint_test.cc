#include "gpipe/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::device;
using testing::error_of;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
namespace F = torch::nn::functional;

Tensor random(torch::IntArrayRef sizes) {
  return torch::randn(sizes, torch::kDouble).to(device());
}

Tensor leaf(torch::IntArrayRef sizes) { return random(sizes).requires_grad_(); }

torch::nn::Linear linear(int64_t in, int64_t out) {
  torch::nn::Linear layer(in, out);
  layer->to(device(), torch::kDouble);
  return layer;
}

// Calls a function, or checkpoints it, so that a test runs both.
enum class Way { kPlain, kCheckpointed };
constexpr Way kWays[] = {Way::kPlain, Way::kCheckpointed};

template <typename Function, typename... Inputs>
auto run(Way way, Function function, Inputs... inputs) {
  return way == Way::kPlain ? function(inputs...)
                            : checkpoint(function, inputs...);
}

// Expects the same bits from `results_of` both ways, with the same random
// numbers.
void expect_same_both_ways(const std::function<Tensors(Way)>& results_of) {
  std::vector<Tensors> results;
  for (const Way way : kWays) {
    torch::manual_seed(1);
    results.push_back(results_of(way));
  }
  EXPECT_EQ(testing::difference(results[0], results[1]), "");
}

TEST(Checkpoint, CallsTheFunctionAgainInBackwardWithTheSameBits) {
  const auto first = linear(4, 8), second = linear(8, 4);
  expect_same_both_ways([&](Way way) -> Tensors {
    int calls = 0;
    const Tensor x = leaf({3, 4});
    const Tensor y = run(
        way,
        [&](Tensor h) mutable {
          ++calls;
          return torch::nn::Linear(second)(torch::nn::Linear(first)(h).tanh());
        },
        x);
    EXPECT_EQ(calls, 1);
    y.pow(2).sum().backward();
    EXPECT_EQ(calls, way == Way::kPlain ? 1 : 2);
    std::vector<Tensor> result = {y.detach(), x.grad()};
    for (const auto& layer : {first, second}) {
      for (Tensor& each : layer->parameters()) {
        result.push_back(each.grad());
        each.mutable_grad() = Tensor();
      }
    }
    return result;
  });
}

TEST(Checkpoint, KeepsOnlyTheInputs) {
  const Tensor x = leaf({3, 4});
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> inside;
  const auto alive = [&] {
    int count = 0;
    for (const auto& each : inside) count += !each.expired();
    return count;
  };
  Tensor y = checkpoint(
      [&](Tensor h) {
        for (int k = 0; k < 3; ++k) {
          h = h.sin();  // saves h
          if (k < 2) inside.emplace_back(h.storage().getWeakStorageImpl());
        }
        return h;
      },
      x);
  EXPECT_EQ(inside.size(), 2u);
  EXPECT_EQ(alive(), 0);
  y.sum().backward();
  EXPECT_EQ(inside.size(), 4u);
  EXPECT_TRUE(
      torch::equal(x.grad(), x.cos() * x.sin().cos() * x.sin().sin().cos()) ||
      torch::allclose(x.grad(), x.cos() * x.sin().cos() * x.sin().sin().cos(),
                      1e-14));
}

TEST(Checkpoint, TakesAndReturnsVectorsTuplesIntegersAndUndefinedTensors) {
  using Pair = std::tuple<Tensor, Tensor>;
  const Tensor index = torch::tensor({2, 0, 1}).to(device());
  expect_same_both_ways([&](Way way) -> Tensors {
    const Tensor a = leaf({3, 4}), b = leaf({3, 4}), c = random({3, 4});
    const Tensors out = run(
        way,
        [](Tensors many, Pair two, Tensor which) -> Tensors {
          EXPECT_FALSE(many[1].defined());
          const auto& [left, right] = two;
          return {(many[0] * left).index_select(0, which), Tensor(), which,
                  right * 2, many[0]};
        },
        Tensors{a, Tensor()}, Pair(b, c), index);
    EXPECT_FALSE(out[1].defined());
    EXPECT_EQ(out[2].scalar_type(), torch::kLong);
    EXPECT_FALSE(out[3].requires_grad());
    EXPECT_TRUE(out[4].is_same(a));  // an output that is an input
    (out[0].exp().sum() + out[4].sum()).backward();
    return {out[0].detach(), out[3], a.grad(), b.grad()};
  });
  const Pair pair =
      checkpoint([](Tensor x) { return Pair(x.exp(), x.sin()); }, leaf({2}));
  EXPECT_TRUE(std::get<1>(pair).requires_grad());
}

TEST(Checkpoint, WithoutGradModeCallsTheFunctionOnce) {
  const torch::NoGradGuard no_grad;
  int calls = 0;
  const Tensor y = checkpoint(
      [&](Tensor x) {
        ++calls;
        EXPECT_FALSE(is_checkpointing());
        return x.exp();
      },
      leaf({2}));
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(calls, 1);
}

TEST(Checkpoint, KnowsWhichOfTheTwoCallsRuns) {
  std::string log;
  const auto note = [&] {
    log += is_recomputing() ? 'R' : is_checkpointing() ? 'C' : '-';
    EXPECT_FALSE(current_microbatch().has_value());
  };
  const Tensor y = checkpoint(
      [&](Tensor x) {
        note();
        return checkpoint(
                   [&](Tensor z) {
                     note();
                     return z.exp().sin();
                   },
                   x.exp())
            .exp();
      },
      leaf({2}));
  note();
  y.sum().backward();
  // The outer function is recomputed, then the inner one.
  EXPECT_EQ(log, "CC-RRR");
}

TEST(Checkpoint, DrawsTheSameNumbersAndDisturbsNoOtherDraw) {
  expect_same_both_ways([&](Way way) -> Tensors {
    at::Generator own = at::globalContext().defaultGenerator(device()).clone();
    own.set_current_seed(17);
    const Tensor x = leaf({64});
    const auto options = torch::dtype(torch::kDouble).device(device());
    const auto f = [&](Tensor h) {
      h = F::dropout(h.sin(), F::DropoutFuncOptions().p(0.5));
      h = h * torch::rand({64}, own, options);
      h = h * torch::rand({64}, options.device(torch::kCPU)).to(device());
      return h.sin() * torch::rand({64}, options);
    };
    const Tensor y = run(way, f, run(way, f, x));
    const Tensor between = torch::rand({64}, options);
    own.set_current_seed(99);
    y.sum().backward();
    const Tensor after = torch::rand({64}, options);
    return {y.detach(),
            between,
            x.grad(),
            after,
            torch::rand({64}, own, options),
            torch::rand({64}, torch::kDouble)};
  });
}

TEST(Checkpoint, DrawsTheSameNumbersInNestedFunctions) {
  expect_same_both_ways([&](Way way) -> Tensors {
    const Tensor x = leaf({64});
    const auto drop = [](Tensor h) {
      return F::dropout(h.sin(), F::DropoutFuncOptions().p(0.5)).sin();
    };
    const Tensor y = run(
        way,
        [&](Tensor h) { return drop(run(way, drop, run(way, drop, drop(h)))); },
        x);
    y.sum().backward();
    return {y.detach(), x.grad(), torch::rand({4})};
  });
}

TEST(Checkpoint, CountsBatchNormOnce) {
  for (const bool average : {false, true}) {
    expect_same_both_ways([&](Way way) -> Tensors {
      torch::nn::BatchNormOptions options(4);
      if (average) options.momentum(std::nullopt);
      torch::nn::BatchNorm1d norm(options);
      norm->to(device(), torch::kDouble);
      const Tensor x = leaf({8, 4});
      Tensor y = x;
      for (int k = 0; k < 2; ++k) {
        y = run(
            way, [&](Tensor h) { return norm(h.sin()).exp(); }, y);
      }
      y.sum().backward();
      EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 2);
      return {y.detach(), x.grad(), norm->running_mean, norm->running_var,
              norm->weight.grad()};
    });
  }
}

TEST(Checkpoint, HasTheAutocastStateOfTheForward) {
  const c10::DeviceType type = device().type();
  torch::nn::Linear layer(8, 8);
  layer->to(device());
  expect_same_both_ways([&](Way way) -> Tensors {
    layer->zero_grad();
    const Tensor x = torch::randn({4, 8}).to(device()).requires_grad_();
    std::vector<at::ScalarType> types;
    at::autocast::set_autocast_enabled(type, true);
    at::autocast::set_autocast_dtype(type, torch::kBFloat16);
    at::autocast::increment_nesting();
    const Tensor y = run(
        way,
        [&](Tensor h) {
          h = layer(layer(h).tanh());
          types.push_back(h.scalar_type());
          return h;
        },
        x);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(type, false);
    y.to(torch::kFloat).sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(type));
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    EXPECT_EQ(types, std::vector<at::ScalarType>(way == Way::kPlain ? 1 : 2,
                                                 torch::kBFloat16));
    return {y.detach(), x.grad(), layer->weight.grad()};
  });
}

// Autocast keeps the copy of the weight that the first call has made.
TEST(Checkpoint, KnowsTheWeightThatAnEarlierCallHasCast) {
  const c10::DeviceType type = device().type();
  torch::nn::Linear layer(8, 8);
  layer->to(device());
  const Tensor x = torch::randn({4, 8}).to(device()).requires_grad_();
  std::vector<Tensor> outputs;
  at::autocast::set_autocast_enabled(type, true);
  at::autocast::set_autocast_dtype(type, torch::kBFloat16);
  at::autocast::increment_nesting();
  for (int call = 0; call < 2; ++call) {
    outputs.push_back(
        checkpoint([&](const Tensor& h) { return layer(h).tanh(); }, x));
  }
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type, false);
  {
    const torch::NoGradGuard no_grad;
    layer->weight.add_(1);
    layer->bias.add_(1);
  }
  for (const Tensor& each : outputs) {
    EXPECT_THAT(error_of([&] { each.to(torch::kFloat).sum().backward(); }),
                ::testing::HasSubstr("has been changed in place between"));
  }
}

TEST(Checkpoint, AddsGradientsOfCapturedParametersOnceAndCallsTheirHooks) {
  int hooks = 0;
  Tensor weight = leaf({4, 4});
  weight.register_hook([&](const Tensor& grad) {
    ++hooks;
    return grad;
  });
  expect_same_both_ways([&](Way way) -> Tensors {
    const Tensor x = random({3, 4});  // requires no grad
    // The weight is used in two functions and outside.
    const auto f = [&](Tensor h) { return h.mm(weight).tanh().mm(weight); };
    Tensor y = run(way, f, run(way, f, x)).mm(weight);
    hooks = 0;
    weight.mutable_grad() = Tensor();
    y.sum().backward();
    EXPECT_EQ(hooks, 1);
    return {y.detach(), weight.grad()};
  });
}

TEST(Checkpoint, ServesGradOfInputsInsideAndOutside) {
  expect_same_both_ways([&](Way way) -> Tensors {
    const Tensor outside = leaf({4}), weight = leaf({4}), h = outside.exp();
    const Tensor y = run(
        way, [&](Tensor z) { return (z * weight).sin().exp(); }, h);
    const auto grads = torch::autograd::grad({y.sum()}, {outside, weight, h});
    EXPECT_FALSE(outside.grad().defined());
    return grads;
  });
}

TEST(Checkpoint, ServesABackwardTwiceIfTheGraphIsRetained) {
  expect_same_both_ways([&](Way way) -> Tensors {
    const Tensor x = leaf({4});
    int calls = 0;
    const Tensor y = run(
        way,
        [&](Tensor z) {
          ++calls;
          return z.sin().exp();
        },
        x);
    y.sum().backward({}, /*keep_graph=*/true);
    const Tensor once = x.grad().clone();
    y.sum().backward();
    EXPECT_EQ(calls, way == Way::kPlain ? 1 : 2);
    return {once, x.grad()};
  });
}

TEST(Checkpoint, HasSecondDerivatives) {
  expect_same_both_ways([&](Way way) -> Tensors {
    const Tensor x = leaf({4}), weight = leaf({4});
    const Tensor y = run(
        way, [&](Tensor z) { return (z * weight).sin().exp(); }, x);
    const Tensor grad = torch::autograd::grad({y.sum()}, {x}, {}, true,
                                              /*create_graph=*/true)[0];
    return torch::autograd::grad({grad.pow(2).sum()}, {x, weight});
  });
}

TEST(Checkpoint, MayRunABackwardInsideTheFunction) {
  expect_same_both_ways([&](Way way) -> Tensors {
    const Tensor x = leaf({4}), weight = leaf({4});
    const Tensor y = run(
        way,
        [&](Tensor z) {
          const Tensor inner = (z * weight).sin().exp();
          const Tensor slope =
              torch::autograd::grad({inner.sum()}, {z}, {}, true, true)[0];
          return slope.pow(2) + inner;
        },
        x);
    y.sum().backward();
    return {y.detach(), x.grad(), weight.grad()};
  });
}

// Also if the inner backward reads what the function has saved, for which the
// function is called again before the first call is done.
TEST(Checkpoint, CountsABackwardInsideTheFunctionOnce) {
  expect_same_both_ways([&](Way way) -> Tensors {
    const Tensor x = leaf({4}), weight = leaf({4});
    Tensor y = x;
    for (int k = 0; k < 2; ++k) {
      y = run(
          way,
          [&](Tensor z) {
            const Tensor own = z.detach().requires_grad_();
            (own * weight).sin().sum().backward();
            (own * weight).exp().sum().backward();
            return z.sin() * own.grad();
          },
          y);
    }
    y.sum().backward();
    return {y.detach(), x.grad(), weight.grad()};
  });
}

// The backward inside calls the function again before its first call has drawn
// random numbers or changed statistics.
TEST(Checkpoint, DoesNothingTwiceThatFollowsABackwardInsideTheFunction) {
  auto layer = linear(3, 3);
  expect_same_both_ways([&](Way way) -> Tensors {
    layer->zero_grad();
    torch::nn::BatchNorm1d norm(3);
    norm->to(device(), torch::kDouble);
    const Tensor count = torch::zeros({}, torch::kDouble).to(device());
    at::Generator own = at::detail::createCPUGenerator(/*seed=*/3);
    const Tensor x = leaf({4, 3});
    const Tensor y = run(
        way,
        [&](Tensor h) {
          const Tensor slope =
              torch::autograd::grad({layer(h).tanh().sum()}, {h}, {},
                                    /*retain_graph=*/true,
                                    /*create_graph=*/true)[0];
          if (!is_recomputing()) count.add_(1);
          const Tensor noise =
              torch::rand({4, 3}, own, torch::kDouble).to(device());
          return F::dropout(norm(slope + h) * noise);
        },
        x);
    const Tensor next = torch::rand({4});
    const Tensor next_own = torch::rand({4}, own);
    y.pow(2).sum().backward();
    EXPECT_EQ(count.item<double>(), 1);
    return {y.detach(),
            x.grad(),
            layer->weight.grad(),
            norm->running_mean,
            norm->num_batches_tracked,
            next,
            next_own};
  });
}

// rrelu draws after autograd has saved the tensor for its numbers, which may be
// the last one that the first call has saved so far.
TEST(Checkpoint, DrawsWhatABackwardInsideTheFunctionNeeds) {
  expect_same_both_ways([&](Way way) -> Tensors {
    const Tensor x = leaf({4, 3});
    const Tensor y = run(
        way,
        [&](Tensor h) {
          const Tensor z = torch::rrelu(h * 2, 0.1, 0.9, /*training=*/true);
          return z + torch::autograd::grad({z.sum()}, {h}, {},
                                           /*retain_graph=*/true,
                                           /*create_graph=*/true)[0];
        },
        x);
    const Tensor next = torch::rand({4});
    y.pow(2).sum().backward();
    return {y.detach(), x.grad(), next};
  });
}

TEST(Checkpoint, NestsToAnyDepth) {
  const std::function<Tensor(Way, Tensor, int)> nest =
      [&](Way way, Tensor x, int depth) -> Tensor {
    const auto f = [&, way, depth](Tensor h) {
      h = h.sin();
      return depth ? nest(way, h, depth - 1).exp() : h.exp();
    };
    return run(way, f, x);
  };
  expect_same_both_ways([&](Way way) -> Tensors {
    const Tensor x = leaf({4});
    const Tensor y = nest(way, nest(way, x * 0.1, 3) * 0.1, 3);
    y.sum().backward();
    return {y.detach(), x.grad()};
  });
}

struct Doubled : torch::autograd::Function<Doubled> {
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor x) {
    const Tensor y = x * x;
    context->save_for_backward({x, y});
    return y;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    return {grads[0] * saved[0] * 2 + saved[1]};
  }
};

TEST(Checkpoint, ServesCustomFunctions) {
  expect_same_both_ways([&](Way way) -> Tensors {
    const Tensor x = leaf({4});
    const Tensor y = run(
        way, [](Tensor z) { return Doubled::apply(z.exp()); }, x);
    y.sum().backward();
    return {x.grad()};
  });
}

TEST(Checkpoint, WorksOnSeveralThreadsAtATime) {
  std::vector<Tensor> grads(4);
  Tensor weight = random({16, 16}).requires_grad_();
  const Tensor input = random({16, 16});
  std::vector<std::thread> threads;
  for (std::size_t k = 0; k < grads.size(); ++k) {
    threads.emplace_back([&, k] {
      const Tensor x = input.clone().requires_grad_();
      Tensor y = x;
      for (int layer = 0; layer < 8; ++layer) {
        y = checkpoint([&](Tensor h) { return h.mm(weight).tanh(); }, y);
      }
      grads[k] = torch::autograd::grad({y.sum()}, {x})[0];
    });
  }
  for (std::thread& each : threads) each.join();
  const Tensor x = input.clone().requires_grad_();
  Tensor y = x;
  for (int layer = 0; layer < 8; ++layer) y = y.mm(weight).tanh();
  const Tensor expected = torch::autograd::grad({y.sum()}, {x})[0];
  for (const Tensor& each : grads) EXPECT_TRUE(torch::equal(each, expected));
}

TEST(Checkpoint, PassesAnExceptionOfTheSecondCallOnAndCanTryAgain) {
  bool fail = true;
  const Tensor x = leaf({4});
  const Tensor y = checkpoint(
      [&](Tensor h) {
        h = h.exp();
        if (is_recomputing() && fail) throw std::out_of_range("second call");
        return h.sin();
      },
      x);
  EXPECT_EQ(error_of([&] { y.sum().backward({}, /*keep_graph=*/true); }),
            "std::out_of_range: second call");
  fail = false;
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), x.exp().cos() * x.exp()));
}

TEST(Checkpoint, RefusesChangesInPlace) {
  const Tensor x = leaf({2, 3});
  EXPECT_EQ(
      error_of([&] { checkpoint([](Tensor h) { return h.relu_(); }, x * 1); }),
      "c10::Error: input 0 of a checkpointed function has been changed "
      "in place by the forward itself, so that the forward cannot be computed "
      "again with the same value; let the change work out of place (such as "
      "ReLU without inplace), or on a clone");

  Tensor input = random({2, 3});
  const Tensor weight = leaf({2, 3});
  const Tensor y = checkpoint(
      [&](Tensor z, Tensor h) { return (z + h).exp() * weight; }, x, input);
  input.add_(1);
  EXPECT_EQ(error_of([&] { y.sum().backward({}, true); })
                .find("c10::Error: input 1 of a checkpointed function has been "
                      "changed in place between forward and backward"),
            0u);

  // A bias is not saved for the backward, but it changes the recompute.
  const Tensor bias = leaf({2, 3});
  const Tensor z = checkpoint([&](Tensor h) { return (h + bias).exp(); }, x);
  {
    const torch::NoGradGuard no_grad;
    bias.add_(1);
  }
  EXPECT_EQ(error_of([&] { z.sum().backward(); }),
            "c10::Error: a parameter ([2, 3] Double) of a checkpointed "
            "function has been changed in place between forward and backward; "
            "the forward cannot be computed again with it. Call backward "
            "first, or forward again; a tensor that the forward changes itself "
            "must be a buffer");

  // As in the plain model: a tensor is changed after it was saved.
  const Tensor w = checkpoint(
      [&](Tensor h) {
        h = h.exp();
        const Tensor saved = h.sin();
        h.add_(1);
        return saved;
      },
      x);
  EXPECT_EQ(error_of([&] { w.sum().backward(); })
                .find("c10::Error: a tensor that backward needs ([2, 3] "
                      "Double) has been changed in place"),
            0u);
}

TEST(Checkpoint, RefusesASecondCallThatDiffers) {
  const auto error = [](std::function<Tensor(Tensor)> second) {
    const Tensor y = checkpoint(
        [&](Tensor h) { return is_recomputing() ? second(h) : h.exp(); },
        leaf({2, 3}));
    return error_of([&] { y.sum().backward(); });
  };
  const std::string remedy =
      "; a checkpointed function must do the same in both calls";
  EXPECT_EQ(error([](Tensor h) { return h.narrow(0, 0, 1).exp(); }),
            "c10::Error: output 0 of a checkpointed function is [2, 3] Double "
            "in the forward and [1, 3] Double in the recompute" +
                remedy);
  EXPECT_EQ(error([](Tensor h) { return h.to(torch::kFloat).exp(); }),
            "c10::Error: output 0 of a checkpointed function is [2, 3] Double "
            "in the forward and [2, 3] Float in the recompute" +
                remedy);
  EXPECT_EQ(error([](Tensor h) { return h.exp().sin(); }),
            "c10::Error: a checkpointed function saved 1 tensors for its "
            "backward in the forward and 2 in the recompute" +
                remedy);
  EXPECT_EQ(error([](Tensor h) {
              return h.narrow(1, 0, 1).exp().expand({2, 3});
            }),
            "c10::Error: saved tensor 0 is [2, 3] Double in the forward and "
            "[2, 1] Double in the recompute" +
                remedy);
}

}  // namespace
}  // namespace gpipe
