// Tests layers that work in place: results equal plain LibTorch, or it is an
// error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <tuple>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::device;
using testing::double_linear;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kModes;
using testing::layer;
using testing::leaf_of;
using testing::one_each;
using testing::one_layer_each;
using testing::options;
using testing::reference_device;
using ::testing::StartsWith;
using torch::Tensor;
using torch::nn::Sequential;
using Pair = std::tuple<Tensor, Tensor>;
using Tensors = std::vector<Tensor>;

constexpr char kChangesItsInput[] =
    "has been changed in place by the forward itself, so that the forward "
    "cannot be computed again";

torch::nn::ReLU inplace_relu() {
  return torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true));
}

Tensor leaf(const torch::Device& where = device()) {
  return torch::randn({4, 3}, torch::kDouble).to(where).requires_grad_();
}

// Expects equal gradients of the input and the parameters from a pipeline and
// from the plain model.
void expect_as_plain(Sequential model, const GPipeOptions& options,
                     bool leaf_input) {
  const Tensor values = leaf();
  const auto grads = [&](auto& module, const torch::Device& where) {
    const Tensor x = leaf_of(values, where);
    auto wanted = model->parameters();
    wanted.push_back(x);
    // In-place work on the input would otherwise change a leaf.
    const Tensor input = leaf_input ? x : x * 1;
    Tensors result;
    for (const Tensor& grad :
         torch::autograd::grad({module->forward(input).pow(2).sum()}, wanted)) {
      result.push_back(grad.cpu());
    }
    return result;
  };
  // The pipeline has moved the parameters.
  model->to(reference_device());
  const auto expected = grads(model, reference_device());
  GPipe pipeline(model, options);
  const auto actual = grads(pipeline, device());
  EXPECT_LE(testing::distance(actual, expected), 1e-12);
}

TEST(Inplace, InsideAPartitionEqualsPlainInEveryMode) {
  torch::manual_seed(0);
  for (const Checkpoint mode : kModes) {
    expect_as_plain(Sequential(double_linear(), inplace_relu(), double_linear(),
                               inplace_relu()),
                    options({2, 2}, 2, mode),
                    /*leaf_input=*/true);
  }
}

// Writes parameters into views: a class token, an embedding of positions.
struct WriteTokenImpl : torch::nn::Module {
  WriteTokenImpl() {
    token = register_parameter("token", torch::randn({1}, torch::kDouble));
    position =
        register_parameter("position", torch::randn({3}, torch::kDouble));
  }
  Tensor forward(const Tensor& x) {
    Tensor y = torch::empty_like(x);
    y.copy_(x);
    y.narrow(1, 0, 1).copy_(token);
    y.view({-1, 1, 3}).add_(position);
    y.narrow(1, 1, 2).mul_(position.narrow(0, 0, 2));
    return y;
  }
  Tensor token, position;
};
TORCH_MODULE(WriteToken);

TEST(Inplace, ParametersWrittenIntoViewsEqualPlainInEveryMode) {
  torch::manual_seed(0);
  for (const Checkpoint mode : kModes) {
    expect_as_plain(Sequential(double_linear(), WriteToken(), double_linear(),
                               WriteToken()),
                    options({2, 2}, 2, mode),
                    /*leaf_input=*/true);
  }
}

// The model is Linear, then ReLU in place on another partition. In torchgpipe
// (test 61) its backward is an error.
TEST(Inplace, AtTheStartOfAPartitionEqualsPlainWithoutCheckpointing) {
  torch::manual_seed(0);
  Sequential model(double_linear(), inplace_relu(), double_linear(),
                   inplace_relu());
  expect_as_plain(model, one_each(model).checkpoint(Checkpoint::kNever),
                  /*leaf_input=*/true);
}

TEST(Inplace, AtTheStartOfThePipelineEqualsPlainForOneMicrobatch) {
  torch::manual_seed(0);
  Sequential model(inplace_relu(), double_linear());
  for (const Checkpoint mode : {Checkpoint::kExceptLast, Checkpoint::kNever}) {
    expect_as_plain(model, one_each(model).chunks(1).checkpoint(mode),
                    /*leaf_input=*/false);
  }
}

// The change is not in the graph of the caller's tensor, as it is for the plain
// model: a gradient through that tensor would lack the factor 3.
TEST(Inplace, AnInputThatALayerHasChangedHasNoFurtherBackward) {
  // No operator saves the changed input, see the next test.
  Sequential model(layer([](Tensor x) { return x.mul_(3); }),
                   layer([](Tensor x) { return x + 1; }));
  for (const int64_t chunks : {1, 2}) {
    auto pipeline = GPipe(
        model, one_each(model).chunks(chunks).checkpoint(Checkpoint::kNever));
    const Tensor z = leaf(), x = z * 2, view = (z * 2).narrow(0, 0, 4);
    for (const Tensor& input : {x, view}) {
      const Tensor y = pipeline->forward(input);
      const Tensor unused = (y.sum() * 0).to(input.device());
      EXPECT_THAT(error_of([&] { (unused + input.sum()).backward(); }),
                  HasSubstr("a layer has changed the input of its pipeline in "
                            "place"));
      EXPECT_EQ(error_of([&] { pipeline->forward(z * 2).sum().backward(); }),
                "");
    }
    const Tensor piece = (z * 2).chunk(2).front();
    EXPECT_THAT(error_of([&] { pipeline->forward(piece); }),
                HasSubstr("output of a function that returns multiple views"));
  }
  auto pipeline = one_layer_each(model, Checkpoint::kNever);
  const Tensor data = torch::ones({4, 3}, torch::kDouble).to(device());
  pipeline->forward(data);
  EXPECT_FALSE(data.requires_grad());
}

// Micro-batches are views of one tensor, and LibTorch counts changes of the
// whole tensor. So a tensor saved for one micro-batch seems changed by the
// next.
TEST(Inplace, AtTheStartOfThePipelineIsDetectedForSeveralMicrobatches) {
  auto pipeline = one_layer_each(Sequential(inplace_relu(), double_linear()),
                                 Checkpoint::kNever);
  EXPECT_THAT(error_of([&] { pipeline->forward(leaf() * 1).sum().backward(); }),
              HasSubstr("has been modified by an inplace operation"));
}

TEST(Inplace, AtTheStartOfACheckpointedPartitionIsDetected) {
  torch::manual_seed(0);
  for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast}) {
    auto pipeline =
        one_layer_each(Sequential(double_linear(), inplace_relu()), mode);
    const auto error = error_of([&] { pipeline->forward(leaf()); });
    EXPECT_THAT(error, StartsWith("c10::Error: input 0 of partition 1 "));
    EXPECT_THAT(error, HasSubstr(kChangesItsInput));
    EXPECT_THAT(error, HasSubstr("(in partition 1, micro-batch 0, forward "
                                 "(checkpointed))"));
  }
}

// If the input does not require grad, torchgpipe does not detect this (its
// expected failure, test 62).
TEST(Inplace, OnAnInputWithoutGradIsDetectedToo) {
  auto pipeline = one_layer_each(Sequential(inplace_relu(), double_linear()),
                                 Checkpoint::kAlways);
  EXPECT_THAT(
      error_of([&] {
        pipeline->forward(torch::ones({4, 3}, torch::kDouble).to(device()));
      }),
      HasSubstr(kChangesItsInput));
}

// In torchgpipe a checkpointed in-place change runs twice, and the gradient is
// then 3 (its expected failure, test 63).
TEST(Inplace, NeverGivesAWrongGradient) {
  // Computes y = (x + 1) * x, with the addition in place on the second of a
  // pair.
  const auto make = [] {
    return Sequential(
        layer<Pair>([](Tensor x) { return Pair(x, torch::ones_like(x)); }),
        layer<Tensor, Pair>([](Pair pair) {
          auto& [foo, bar] = pair;
          bar.add_(1);
          return foo * bar;
        }));
  };
  for (const Checkpoint mode : kModes) {
    auto pipeline = one_layer_each(make(), mode);
    const Tensor x = torch::ones({4}).to(device()).requires_grad_();
    const auto error = error_of([&] { pipeline->forward(x).sum().backward(); });
    if (mode == Checkpoint::kNever) {
      EXPECT_EQ(error, "");
      EXPECT_TRUE(torch::equal(x.grad(), torch::full_like(x, 2)));
    } else {
      EXPECT_THAT(error, HasSubstr(kChangesItsInput));
    }
  }
}

TEST(Inplace, OnALeafThatRequiresGradIsLibTorchsError) {
  for (const Checkpoint mode : kModes) {
    Sequential model(inplace_relu(), double_linear());
    model->to(reference_device());
    const auto plain =
        error_of([&] { model->forward(leaf(reference_device())); });
    auto pipeline = one_layer_each(model, mode);
    EXPECT_THAT(plain, HasSubstr("a leaf Variable that requires grad is being "
                                 "used in an in-place operation"));
    EXPECT_EQ(error_of([&] { pipeline->forward(leaf()); }).rfind(plain, 0), 0u);
  }
}

// An earlier partition may pass a leaf on: its parameter, or the input.
TEST(Inplace, OnALeafOfAnEarlierPartitionIsLibTorchsError) {
  const Tensor weight = leaf();
  const Tensor before = weight.detach().clone();
  Sequential of_weight(layer([&](Tensor x) { return weight.to(x.device()); }),
                       inplace_relu());
  Sequential of_input(torch::nn::Identity(), inplace_relu());
  for (Sequential& model : std::vector<Sequential>{of_weight, of_input}) {
    GPipe pipeline(model, one_each(model)
                              .checkpoint(Checkpoint::kNever)
                              .devices({device(), device()}));
    EXPECT_THAT(error_of([&] { pipeline->forward(weight); }),
                HasSubstr("a leaf Variable that requires grad is being used in "
                          "an in-place operation"));
    EXPECT_TRUE(torch::equal(weight, before));
  }
}

// The backward of sigmoid needs its output. Both partitions are on one device;
// otherwise the second one would work on a copy.
TEST(Inplace, OnWhatAnEarlierPartitionNeedsIsLibTorchsError) {
  Sequential model(layer([](Tensor x) { return x.sigmoid(); }),
                   layer([](Tensor x) { return x.add_(1); }));
  GPipe pipeline(model, one_each(model)
                            .checkpoint(Checkpoint::kNever)
                            .devices({device(), device()}));
  const auto changed = HasSubstr(
      "one of the variables needed for gradient computation has been modified "
      "by an inplace operation");
  EXPECT_THAT(error_of([&] {
                model->forward(leaf(reference_device())).sum().backward();
              }),
              changed);
  EXPECT_THAT(error_of([&] { pipeline->forward(leaf()).sum().backward(); }),
              changed);
}

TEST(Inplace, OnACopyOfWhatAnEarlierPartitionNeedsEqualsOutOfPlace) {
  if (device(0) == device(1)) {
    GTEST_SKIP() << "nothing is copied between partitions on one device";
  }
  Sequential model(layer([](Tensor x) { return x.sigmoid(); }),
                   layer([](Tensor x) { return x.add_(1); }));
  auto pipeline = one_layer_each(model, Checkpoint::kNever);
  const Tensor x = leaf();
  pipeline->forward(x).sum().backward();
  const Tensor y = leaf_of(x);
  (y.sigmoid() + 1).sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), y.grad(), 1e-12, 1e-12));
}

// In the plain model both are one variable, so its gradient includes the
// change.
TEST(Inplace, OnATensorThatAnotherLayerGetsTooIsDetected) {
  torch::manual_seed(0);
  const auto twice = [](Tensor x) { return Pair(x, x); };
  const auto change = [](Pair pair) {
    return std::get<0>(pair).relu_() + std::get<1>(pair);
  };
  const auto pass_on = [](Pair pair) { return pair; };
  const auto models = [&] {
    return std::vector<Sequential>{
        Sequential(double_linear(), layer<Pair>(twice),
                   layer<Tensor, Pair>(change)),
        Sequential(double_linear(), layer<Pair>(twice),
                   layer<Pair, Pair>(pass_on), layer<Tensor, Pair>(change)),
        Sequential(double_linear(), testing::Keep(), inplace_relu(),
                   testing::Add()),
        Sequential(double_linear(), testing::Keep(), torch::nn::Identity(),
                   inplace_relu(), testing::Add())};
  };
  for (const auto& devices :
       {std::vector<torch::Device>(5, device()), testing::devices(5)}) {
    for (Sequential& model : models()) {
      const auto options = one_each(model).devices(devices);
      GPipe pipeline(model,
                     GPipeOptions(options).checkpoint(Checkpoint::kNever));
      EXPECT_THAT(error_of([&] { pipeline->forward(leaf()); }),
                  HasSubstr("changes a tensor in place that an earlier "
                            "partition has given to more than one layer"));
      const torch::NoGradGuard no_grad;
      EXPECT_THAT(error_of([&] { pipeline->forward(leaf()); }),
                  HasSubstr("has given to more than one layer"));
    }
  }
}

TEST(Inplace, OnOneOfTwoPartsOfATensorEqualsPlain) {
  torch::manual_seed(0);
  for (const int64_t dimension : {0, 1}) {
    Sequential model(double_linear(), layer<Pair>([=](Tensor x) {
                       x = x + 1;
                       const int64_t half = x.size(dimension) / 2;
                       return Pair(x.narrow(dimension, 0, half),
                                   x.narrow(dimension, half, half));
                     }),
                     layer<Tensor, Pair>([](Pair pair) {
                       return std::get<0>(pair).relu_() * std::get<1>(pair);
                     }));
    expect_as_plain(model,
                    one_each(model).chunks(1).checkpoint(Checkpoint::kNever),
                    /*leaf_input=*/true);
  }
}

TEST(Inplace, OnTheOutputIsUpToTheUser) {
  torch::manual_seed(0);
  for (const Checkpoint mode : kModes) {
    Sequential model(double_linear(), double_linear());
    const Tensor values = leaf();
    const auto run = [&](auto& module, const torch::Device& where) {
      const Tensor x = leaf_of(values, where);
      auto output = module->forward(x);
      output.relu_();
      return torch::autograd::grad({output.sum()}, {x})[0].cpu();
    };
    model->to(reference_device());
    const Tensor expected = run(model, reference_device());
    auto pipeline = one_layer_each(model, mode);
    EXPECT_TRUE(
        torch::allclose(run(pipeline, device()), expected, 1e-12, 1e-12));
  }
}

// torchgpipe's test_python_autograd_function: a tensor that crosses a boundary
// is no longer the tensor that autograd recorded.
struct ReturnsItsInput : torch::autograd::Function<ReturnsItsInput> {
  static Tensor forward(torch::autograd::AutogradContext*, Tensor x) {
    return x;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*, torch::autograd::variable_list grads) {
    return grads;
  }
};

TEST(CustomFunction, MayReturnItsInputItself) {
  for (const Checkpoint mode : kModes) {
    auto pipeline = one_layer_each(
        Sequential(layer([](Tensor x) { return ReturnsItsInput::apply(x); }),
                   layer([](Tensor x) { return ReturnsItsInput::apply(x); })),
        mode);
    const Tensor x = leaf();
    const auto output = pipeline->forward(x);
    EXPECT_TRUE(torch::equal(output.cpu(), x.cpu()));
    output.sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::ones_like(x)));
  }
}

// Dropout returns its input if that has no elements, also in training.
TEST(Inplace, WorksOnTheInputOfACheckpointedCellWithoutRows) {
  Sequential model(double_linear(), torch::nn::Dropout(0.5),
                   torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)),
                   double_linear());
  GPipe pipeline(model, options({1, 3}, 2, Checkpoint::kAlways));
  const Tensor x =
      torch::zeros({0, 3}, torch::kDouble).to(device()).requires_grad_();
  pipeline->forward(x).sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  for (const Tensor& each : pipeline->parameters()) {
    EXPECT_EQ(each.grad().abs().sum().item<double>(), 0);
  }
}

}  // namespace
}  // namespace gpipe
