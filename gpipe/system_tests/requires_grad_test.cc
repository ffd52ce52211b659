// Tests which outputs of a pipeline require grad: the same as in plain
// LibTorch, in every checkpoint mode, with and without a graph.
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <tuple>
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
using testing::double_linear;
using testing::kModes;
using testing::layer;
using testing::one_layer_each;
using testing::reference_device;
using torch::Tensor;
using torch::nn::Sequential;
using Tensors = std::vector<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

void freeze(torch::nn::Module& module) {
  for (Tensor& each : module.parameters()) each.set_requires_grad(false);
}

// Returns a pipeline with one layer per partition and two micro-batches.
Tensor input(bool requires_grad, const torch::Device& where = device()) {
  torch::manual_seed(0);
  return torch::randn({4, 3}, torch::kDouble)
      .to(where)
      .set_requires_grad(requires_grad);
}

// Runs `model` plainly, and in every mode as a pipeline with one layer per
// partition. Expects the same requires_grad and the same gradients of the input
// and of all parameters.
void expect_as_plain(Sequential model, bool input_requires_grad) {
  const auto run = [&](auto& module, const torch::Device& where) {
    auto wanted = model->parameters();
    const Tensor x = input(input_requires_grad, where);
    wanted.push_back(x);
    for (Tensor& each : wanted) each.mutable_grad() = Tensor();
    const Tensor output = module->forward(x);
    if (output.requires_grad()) output.pow(2).sum().backward();
    Tensors result = testing::grads_of(wanted);
    result.push_back(torch::tensor(output.requires_grad()));
    return result;
  };
  model->to(reference_device());
  const auto expected = run(model, reference_device());
  for (const Checkpoint mode : kModes) {
    auto pipeline = one_layer_each(model, mode);
    const auto actual = run(pipeline, device());
    EXPECT_LE(testing::distance(actual, expected), 1e-12);
  }
}

TEST(RequiresGrad, WithAnInputThatDoes) {
  expect_as_plain(Sequential(double_linear(), double_linear(), double_linear()),
                  /*input_requires_grad=*/true);
}

TEST(RequiresGrad, WithAnInputThatDoesNot) {
  expect_as_plain(Sequential(double_linear(), double_linear(), double_linear()),
                  /*input_requires_grad=*/false);
}

TEST(RequiresGrad, WithFrozenPartitions) {
  for (int frozen = 0; frozen < 8; ++frozen) {
    for (const bool input_requires_grad : {true, false}) {
      Sequential model(double_linear(), double_linear(), double_linear());
      for (int k = 0; k < 3; ++k) {
        if (frozen >> k & 1) freeze(*model[k]);
      }
      expect_as_plain(model, input_requires_grad);
    }
  }
}

// Computes with gradients, and may leave the mode off behind it.
struct SetsModeImpl : torch::nn::Module {
  explicit SetsModeImpl(bool leaves_off)
      : linear(register_module("linear", double_linear())),
        leaves_off(leaves_off) {}
  Tensor forward(const Tensor& x) {
    torch::GradMode::set_enabled(true);
    Tensor y = linear(x);
    if (leaves_off) torch::GradMode::set_enabled(false);
    return y;
  }
  torch::nn::Linear linear;
  bool leaves_off;
};
TORCH_MODULE(SetsMode);

TEST(RequiresGrad, WithLayersAndLossesThatLeaveTheModeOff) {
  const torch::AutoGradMode restores_mode(true);
  for (int off = 0; off < 8; ++off) {
    const auto loss = [&](const Tensor& y, const Tensor& /*target*/) {
      torch::GradMode::set_enabled(true);
      Tensor result = y.pow(2).mean();
      if (off & 4) torch::GradMode::set_enabled(false);
      return result;
    };
    Sequential model(SetsMode(off & 1), SetsMode(off & 2));
    model->to(reference_device());
    const Tensor x = input(false, reference_device());
    loss(model->forward(x), x).backward();
    torch::GradMode::set_enabled(true);
    const Tensors expected = testing::grads_of(model->parameters());
    for (const Checkpoint mode : kModes) {
      for (const bool by_step : {false, true}) {
        auto pipeline = one_layer_each(model, mode);
        pipeline->zero_grad();
        const Tensor own = input(false);
        if (by_step) {
          pipeline->train_step(own, own, loss, fill_drain(2, 2));
        } else {
          loss(pipeline->forward(own), own).backward();
          torch::GradMode::set_enabled(true);
        }
        EXPECT_LE(testing::distance(testing::grads_of(pipeline->parameters()),
                                    expected),
                  1e-12)
            << off << " " << to_string(mode) << by_step;
      }
    }
  }
}

TEST(RequiresGrad, WithoutAnyParameter) {
  for (const bool input_requires_grad : {true, false}) {
    expect_as_plain(Sequential(layer([](Tensor x) { return x.sin(); }),
                               layer([](Tensor x) { return x.cos(); })),
                    input_requires_grad);
  }
}

TEST(RequiresGrad, WithDetachInsideALayer) {
  const auto detach = [] { return layer([](Tensor x) { return x.detach(); }); };
  expect_as_plain(Sequential(double_linear(), detach()),
                  /*input_requires_grad=*/true);
  expect_as_plain(Sequential(double_linear(), detach(), double_linear()),
                  /*input_requires_grad=*/true);
  expect_as_plain(Sequential(detach(), double_linear()),
                  /*input_requires_grad=*/true);
  expect_as_plain(Sequential(double_linear(),
                             layer([](Tensor x) { return x + x.detach(); })),
                  /*input_requires_grad=*/true);
}

TEST(RequiresGrad, WithNoGradInsideALayer) {
  expect_as_plain(Sequential(double_linear(), layer([](Tensor x) {
                               torch::NoGradGuard no_grad;
                               return x * 2;
                             }),
                             double_linear()),
                  /*input_requires_grad=*/true);
}

TEST(RequiresGrad, WithALayerThatMakesItsOutputRequireGrad) {
  expect_as_plain(
      Sequential(layer([](Tensor x) { return x.detach().requires_grad_(); }),
                 double_linear()),
      /*input_requires_grad=*/false);
}

TEST(RequiresGrad, WithAnOutputThatIsAParameter) {
  const Tensor weight =
      torch::ones({2, 3}, torch::kDouble).to(device()).requires_grad_();
  for (const Checkpoint mode : kModes) {
    Sequential model(layer([weight](Tensor) { return weight; }));
    auto pipeline = one_layer_each(model, mode);
    const auto output = pipeline->forward(torch::ones({4, 1}).to(device()));
    EXPECT_TRUE(output.requires_grad());
    const auto grad = torch::autograd::grad({output.sum()}, {weight});
    EXPECT_TRUE(torch::equal(grad[0], torch::full_like(weight, 2)));
  }
}

// A pipeline does not know of modules that a layer has captured, so the tests
// move these.
TEST(RequiresGrad, OfEachOutputIsItsOwn) {
  for (const Checkpoint mode : kModes) {
    auto first = double_linear();
    Sequential model(layer<Triple>([first](Tensor x) mutable {
                       return Triple(first(x), x > 0, x.detach() * 2);
                     }),
                     layer<Triple, Triple>([](Triple in) {
                       const auto& [a, b, c] = in;
                       return Triple(a * b, b.to(torch::kLong), c + 1);
                     }));
    const auto run = [&](auto& module, const torch::Device& where) {
      first->to(where);
      const Tensor x = input(true, where);
      const auto output = module->template forward<Triple>(x);
      const auto grads = torch::autograd::grad({std::get<0>(output).sum()},
                                               {x, first->weight});
      return std::make_tuple(output, grads[0].cpu(), grads[1].cpu());
    };
    const auto [plain, expected_x, expected_weight] =
        run(model, reference_device());
    auto pipeline = one_layer_each(model, mode);
    const auto [output, actual_x, actual_weight] = run(pipeline, device());
    EXPECT_TRUE(std::get<0>(output).requires_grad());
    EXPECT_FALSE(std::get<1>(output).requires_grad());
    EXPECT_FALSE(std::get<2>(output).requires_grad());
    EXPECT_EQ(std::get<1>(output).scalar_type(), torch::kLong);
    EXPECT_TRUE(
        torch::equal(std::get<1>(output).cpu(), std::get<1>(plain).cpu()));
    EXPECT_TRUE(torch::allclose(actual_x, expected_x));
    EXPECT_TRUE(torch::allclose(actual_weight, expected_weight));
  }
}

// A tensor that does not require grad crosses boundaries together with one that
// does. torchgpipe refuses this with checkpointing.
TEST(RequiresGrad, IntegersMayTravelBesideFloats) {
  for (const Checkpoint mode : kModes) {
    auto last = double_linear();
    Sequential model(layer<Pair>([](Tensor x) { return Pair(x * 2, x > 0); }),
                     layer<Pair, Pair>([](Pair in) { return in; }),
                     layer<Tensor, Pair>([last](Pair in) mutable {
                       return last(std::get<0>(in)) * std::get<1>(in);
                     }));
    const auto run = [](auto& module, const Tensor& x) {
      return torch::autograd::grad({module->forward(x).sum()}, {x})[0].cpu();
    };
    last->to(reference_device());
    const auto expected = run(model, input(true, reference_device()));
    last->to(device(2));
    auto pipeline = one_layer_each(model, mode);
    const auto actual = run(pipeline, input(true));
    EXPECT_TRUE(torch::allclose(actual, expected));
  }
}

// --- Without a graph ---------------------------------------------------------

// A layer that counts its calls and whether gradients were enabled and the cell
// was checkpointed.
struct Probe {
  std::atomic<int> calls{0}, with_grad{0}, checkpointing{0}, recomputing{0},
      inference{0};
  torch::nn::AnyModule make() {
    return layer([this](Tensor x) {
      ++calls;
      with_grad += torch::GradMode::is_enabled();
      inference += c10::InferenceMode::is_enabled();
      checkpointing += is_checkpointing();
      recomputing += is_recomputing();
      return x * 2;
    });
  }
};

TEST(NoGrad, LeavesNoGraphAndChecksNoPoint) {
  for (const Checkpoint mode : kModes) {
    Probe probe;
    Sequential model(double_linear(), probe.make());
    auto pipeline = one_layer_each(model, mode);
    torch::NoGradGuard no_grad;
    const auto output = pipeline->forward(input(true));
    EXPECT_FALSE(output.requires_grad());
    EXPECT_EQ(output.grad_fn(), nullptr);
    EXPECT_EQ(probe.calls, 2);
    EXPECT_EQ(probe.with_grad, 0);
    EXPECT_EQ(probe.checkpointing, 0);
  }
}

TEST(InferenceMode, ReachesTheWorkers) {
  for (const Checkpoint mode : kModes) {
    Probe probe;
    Sequential model(double_linear(), probe.make());
    model->to(reference_device());
    const Tensor expected = model->forward(input(false, reference_device()));
    auto pipeline = one_layer_each(model, mode);
    const Tensor x = input(false);
    probe.inference = 0;
    c10::InferenceMode inference;
    const auto output = pipeline->forward(x);
    EXPECT_TRUE(output.is_inference());
    EXPECT_EQ(probe.inference, 2);
    EXPECT_TRUE(torch::allclose(output.cpu(), expected.cpu()));
    const Tensor ones = torch::ones({4, 3}, torch::kDouble).to(device());
    EXPECT_TRUE(pipeline->forward(ones).is_inference());
  }
}

TEST(Eval, NeverCheckpointsButKeepsTheGraph) {
  for (const Checkpoint mode : kModes) {
    Probe probe;
    Sequential model(double_linear(), torch::nn::Dropout(0.5), probe.make());
    auto pipeline = one_layer_each(model, mode);
    pipeline->eval();
    const Tensor x = input(true);
    pipeline->forward(x).sum().backward();
    EXPECT_TRUE(x.grad().defined());
    EXPECT_EQ(probe.calls, 2);
    EXPECT_EQ(probe.with_grad, 2);
    EXPECT_EQ(probe.checkpointing, 0);
    EXPECT_EQ(probe.recomputing, 0);
    pipeline->train();
    probe.calls = 0;
    pipeline->forward(x).sum().backward();
    EXPECT_EQ(probe.calls, mode == Checkpoint::kAlways  ? 4
                           : mode == Checkpoint::kNever ? 2
                                                        : 3);
  }
}

}  // namespace
}  // namespace gpipe
