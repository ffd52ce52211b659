// Tests unchanged modules whose parts are on several devices: values, gradients
// and steps equal those on one device.
#include "gpipe/placement.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/pimpl.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/nn/utils/rnn.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/placement/nets_testing.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"

namespace gpipe {
namespace {

using testing::BackwardOnOneThread;
using testing::device;
using testing::error_of;
using testing::expect_equal;
using testing::forward_on_one;
using testing::is_marked;
using testing::make;
using testing::Mlp;
using testing::reference_device;
using testing::Residual;
using testing::state_of;
using testing::train;
using testing::train_on_one;
using torch::Tensor;
using torch::nn::Linear;

struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl() {
    using namespace torch::nn;
    conv1 = register_module("conv1", Conv2d(Conv2dOptions(1, 4, 3).padding(1)));
    bn = register_module("bn", BatchNorm2d(4));
    drop = register_module("drop", Dropout(0.5));
    conv2 = register_module("conv2", Conv2d(4, 2, 3));
    head = register_module("head", Linear(2 * 4 * 4, 3));
  }
  Tensor forward(Tensor x) {
    x = bn(conv1(x));
    x.relu_();
    x = torch::max_pool2d(conv2(drop(x)), 2);
    return torch::log_softmax(head(x.flatten(1)), 1);
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d bn{nullptr};
  torch::nn::Dropout drop{nullptr};
  Linear head{nullptr};
};
TORCH_MODULE(ConvNet);

// A model with integer inputs, a tied matrix, and positions that forward()
// makes on the CPU.
struct LanguageImpl : torch::nn::Module {
  LanguageImpl() {
    tokens = register_module("tokens", torch::nn::Embedding(11, 4));
    positions = register_module("positions", torch::nn::Embedding(5, 4));
    lstm = register_module("lstm", torch::nn::LSTM(4, 4));
    head = register_module("head", Linear(4, 11));
    head->weight = head->register_parameter("tied", tokens->weight);
  }
  Tensor forward(const Tensor& ids) {
    const Tensor x =
        tokens(ids) + positions(torch::arange(ids.size(0))).unsqueeze(1);
    return head(std::get<0>(lstm(x)));
  }
  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  torch::nn::LSTM lstm{nullptr};
  Linear head{nullptr};
};
TORCH_MODULE(Language);

using Named = std::map<std::string, Tensor>;

// A module with nested data as input and output.
struct NestedImpl : torch::nn::Module {
  NestedImpl() {
    left = register_module("left", Linear(2, 2));
    right = register_module("right", Linear(2, 2));
  }
  std::tuple<Tensor, Named> forward(
      const std::vector<Tensor>& x,
      const std::optional<std::pair<Tensor, int>>& more) {
    for (const Tensor& each : x) seen.push_back(each.device());
    if (more) seen.push_back(more->first.device());
    return {left(x[0]) + right(x[1]),
            {{"twice", 2 * x[0]}, {"right", right(more->first)}}};
  }
  Linear left{nullptr}, right{nullptr};
  std::vector<torch::Device> seen;
};
TORCH_MODULE(Nested);

TEST(Placement, ResidualNetLearnsAsOnOneDevice) {
  const Tensor x = torch::randn({4, 6});
  Residual net = make<Residual>();
  parallelize_pipeline(net, {{"", device(0)},
                             {"first", device(1)},
                             {"second", {device(2), device(1)}},
                             {"second.mlp.up", device(3)},
                             {"head", {device(2), device(0)}}});
  EXPECT_EQ(net->scale.device(), device(0));
  EXPECT_EQ(net->shift.device(), device(0));
  EXPECT_EQ(net->first->norm->weight.device(), device(1));
  EXPECT_EQ(net->first->mlp->down->bias.device(), device(1));
  EXPECT_EQ(net->second->norm->bias.device(), device(2));
  EXPECT_EQ(net->second->mlp->up->weight.device(), device(3));
  EXPECT_EQ(net->second->mlp->down->weight.device(), device(2));
  EXPECT_EQ(net->forward(x).device(), device(0));
  expect_equal(train(net, x), train_on_one<Residual>(x));
}

TEST(Placement, ConvNetKeepsItsStatisticsAndDrops) {
  const Tensor x = torch::randn({5, 1, 10, 10});
  const auto run = [&](ConvNet net, const torch::Device& at) {
    torch::manual_seed(4);
    if (!at.is_cpu()) {
      at::Generator generator = at::globalContext().defaultGenerator(at);
      generator.set_current_seed(4);
    }
    std::vector<Tensor> result = train(net, x.to(at));
    net->eval();
    result.push_back(net->forward(x.to(at)));
    return result;
  };
  ConvNet one = make<ConvNet>();
  one->to(device(1));
  ConvNet net = make<ConvNet>();
  parallelize_pipeline(net, {{"", device(1)},
                             {"conv1", device(0)},
                             {"bn", {device(2), device(1)}},
                             {"conv2", device(3)}});
  const auto expected = run(one, device(1));
  expect_equal(run(net, device(1)), expected);
  EXPECT_EQ(net->bn->running_mean.device(), device(2));
  EXPECT_EQ(net->bn->num_batches_tracked.template item<int64_t>(), 3);
}

TEST(Placement, IntegersAndATiedMatrix) {
  const Tensor ids = torch::randint(0, 11, {5, 3}, torch::kLong);
  Language net = make<Language>();
  parallelize_pipeline(net, {{"", device(0)},
                             {"positions", device(1)},
                             {"lstm", device(2)},
                             {"head", device(3)}});
  EXPECT_TRUE(net->head->weight.is_same(net->tokens->weight));
  EXPECT_EQ(net->tokens->weight.device(), device(3)) << "the last of two";
  // The reference runs on device(0): on the CPU, LibTorch has another LSTM
  // kernel.
  Language one = make<Language>();
  parallelize_module(one, device(0));
  expect_equal(train(net, ids), train(one, ids));
}

TEST(Placement, PackedSequencesKeepTheirLengthsOnTheCpu) {
  namespace rnn = torch::nn::utils::rnn;
  torch::manual_seed(0);
  torch::nn::LSTM lstm(3, 2);
  const Tensor x = torch::randn({4, 2, 3});
  const Tensor lengths = torch::tensor({4, 2}, torch::kLong);
  const auto run = [&](const Tensor& input) {
    const auto packed = rnn::pack_padded_sequence(input, lengths);
    const auto [output, state] = lstm->forward_with_packed_input(packed);
    return std::vector<Tensor>{output.data().detach(),
                               std::get<0>(state).detach()};
  };
  // Does not use reference_device(): the CPU's LSTM multiplies the inputs of
  // all time steps at once, which on some CPUs changes the last bit.
  lstm->to(device(0));
  const auto expected = run(x.to(device(0)));
  parallelize_module(lstm, device(1), device(2));
  const auto given = run(x);
  EXPECT_EQ(given[0].device(), device(2));
  expect_equal(given, expected);
}

// --- Processing and output devices ------------------------------------------

TEST(Placement, LeafPutsItsOutputOnTheOutputDevice) {
  Linear linear(2, 2);
  parallelize_module(linear, device(1), device(2));
  const Tensor y = linear(torch::ones({1, 2}));
  EXPECT_EQ(y.device(), device(2));
  y.sum().backward();
  EXPECT_EQ(linear->weight.grad().device(), device(1));
  EXPECT_TRUE(torch::equal(linear->weight.grad().cpu(), torch::ones({2, 2})));
  // Optimizers compute this for weight decay. It is not the module's output.
  EXPECT_EQ(linear->weight.grad().add(linear->weight, 0.1).device(), device(1));
}

TEST(Placement, ForwardWithNestedDataIsThatOfHooks) {
  const std::vector<Tensor> x = {torch::randn({2, 2}), torch::randn({2, 2})};
  const std::pair<Tensor, int> more = {torch::randn({2, 2}), 7};
  Nested plain = make<Nested>();
  plain->to(reference_device());
  const auto there = [](const Tensor& each) {
    return each.to(reference_device());
  };
  const auto [sum, named] =
      plain->forward({there(x[0]), there(x[1])},
                     std::pair<Tensor, int>(there(more.first), more.second));

  Nested net = make<Nested>();
  parallelize_pipeline(
      net, {{"", {device(0), device(3)}}, {"right", {device(1), device(0)}}});
  const auto result = placed_forward(net, x, std::make_optional(more));
  EXPECT_EQ(net->seen, std::vector<torch::Device>(3, device(0)));
  expect_equal({std::get<0>(result), std::get<1>(result).at("twice"),
                std::get<1>(result).at("right")},
               {sum, named.at("twice"), named.at("right")});
  EXPECT_EQ(std::get<0>(result).device(), device(3));
  EXPECT_EQ(std::get<1>(result).at("twice").device(), device(3));
  EXPECT_EQ(std::get<1>(result).at("right").device(), device(3));
}

TEST(Placement, ForwardOfAModuleWithoutDevicesIsJustCalled) {
  Linear linear(2, 2);
  const Tensor x = torch::ones({1, 2});
  EXPECT_TRUE(torch::equal(placed_forward(linear, x), linear(x)));
  EXPECT_TRUE(torch::equal(placed_forward(*linear, x), linear(x)));
}

// Records the device where it runs.
struct WitnessImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    devices.push_back(x.device());
    return torch::relu(x);
  }
  std::vector<torch::Device> devices;
};
TORCH_MODULE(Witness);

TEST(Placement, ModulesWithoutParametersInASequential) {
  Witness a, b, c;
  torch::nn::Sequential net(a, Linear(2, 2), b, Mlp(2), c);
  const Tensor x = torch::randn({3, 2});
  const Tensor expected = forward_on_one(net, x);
  for (Witness each : {a, b, c}) each->devices.clear();
  parallelize_pipeline(net, {{"", {device(0), device(3)}},
                             {"2", device(1)},
                             {"3", {device(2), device(1)}}});
  const Tensor y = net->forward(x);
  EXPECT_EQ(a->devices.at(0), device(0)) << "the Sequential's";
  EXPECT_EQ(b->devices.at(0), device(1)) << "its own";
  EXPECT_EQ(c->devices.at(0), device(1)) << "the output of the module before";
  EXPECT_EQ(y.device(), device(3));
  expect_equal({y}, {expected});
  EXPECT_EQ(net->size(), 5);
  EXPECT_EQ(net->ptr(2), b.ptr());
  EXPECT_EQ(&net->at<torch::nn::LinearImpl>(1), net->ptr(1).get())
      << "not wrapped: an operator brings its input";

  unparallelize_pipeline(net, "cpu");
  EXPECT_EQ(net->forward(x).device(), torch::Device("cpu"));
  EXPECT_EQ(c->devices.back(), torch::Device("cpu"));
  EXPECT_EQ(&net->at<WitnessImpl>(2), b.get()) << "unwrapped";
}

TEST(Placement, ASequentialInsideIsWrappedToo) {
  struct OuterImpl : torch::nn::Module {
    OuterImpl() { register_module("body", body); }
    Tensor forward(const Tensor& x) { return body->forward(x); }
    Witness witness;
    torch::nn::Sequential body{Linear(2, 2), witness};
  };
  auto net = std::make_shared<OuterImpl>();
  parallelize_module(net, device(0));
  parallelize_module(net->witness, device(1), device(2));
  EXPECT_EQ(net->forward(torch::ones({1, 2})).device(), device(2));
  EXPECT_EQ(net->witness->devices.at(0), device(1));
  unparallelize_module(net->witness);
  EXPECT_EQ(net->forward(torch::ones({1, 2})).device(), device(0));
}

TEST(Placement, AnIndexWithoutDimensionsComesToo) {
  torch::nn::Embedding table(3, 2);
  const Tensor row = table->weight[1].detach();
  parallelize_module(table, device(1));
  const Tensor given = table(torch::tensor(1));
  EXPECT_EQ(given.device(), device(1));
  expect_equal({given}, {row});
  // Beside data it may stay on the CPU, as in LibTorch.
  expect_equal({given * torch::tensor(2.0)}, {row * 2});
}

TEST(Placement, AnIndexWithoutDimensionsIsAnInput) {
  torch::nn::Embedding table(3, 2);
  const Tensor row = table->weight[1].detach();
  parallelize_module(table, device(1), device(2));
  const Tensor given = table(torch::tensor(1));
  EXPECT_EQ(given.device(), device(2));
  expect_equal({given}, {row});
  EXPECT_EQ((given + torch::ones({2})).device(), device(2)) << "is no weight";

  Tensor two = torch::tensor(2.0);
  two.unsafeGetTensorImpl()->set_wrapped_number(true);
  EXPECT_EQ(table->weight.mul(two).device(), device(1)) << "a weight still";
}

TEST(Placement, ANumberThatIsWrittenToStaysOnTheCpu) {
  const Tensor x = torch::randn({3, 2});
  Mlp net(2);
  parallelize_pipeline(net, {{"up", device(1)}, {"down", device(2)}});
  const Tensor loss = net(x).sum();
  Tensor total = torch::zeros({});
  total += loss.detach();
  total.add_(loss);
  EXPECT_EQ(total.device(), torch::Device("cpu"));
  EXPECT_FALSE(is_marked(total));
  expect_equal({total.detach()}, {2 * loss.detach().cpu()});
  total.backward();
  EXPECT_EQ(net->up->weight.grad().device(), device(1));
}

TEST(Placement, WithoutAutogradToo) {
  const Tensor x = torch::randn({4, 6});
  Residual net = make<Residual>();
  net->eval();
  const Tensor expected = forward_on_one(net, x);
  parallelize_pipeline(net, {{"", device(0)}, {"second", device(1)}});
  {
    const torch::NoGradGuard no_grad;
    expect_equal({net(x)}, {expected});
  }
  {
    const c10::InferenceMode inference;
    expect_equal({net(x)}, {expected});
  }
}

TEST(Placement, ACloneFollowsTheRulesOfItsOriginal) {
  Linear linear(2, 2);
  const Tensor x = torch::randn({3, 2});
  const Tensor expected = forward_on_one(linear, x);
  parallelize_module(linear, device(1), device(2));
  auto clone =
      std::dynamic_pointer_cast<torch::nn::LinearImpl>(linear->clone());
  EXPECT_EQ(clone->forward(x).device(), device(2));
  expect_equal({clone->forward(x)}, {expected});
  unparallelize_module(linear, "cpu");
  EXPECT_FALSE(is_marked(linear(x)));
  const Tensor there = x.to(device(1));
  EXPECT_EQ(clone->forward(there).device(), device(1));
  EXPECT_FALSE(is_marked(clone->forward(there)));
}

// A module that records where an operator on two branches runs.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    a = register_module("a", Mlp(2));
    b = register_module("b", Mlp(2));
  }
  Tensor forward(const Tensor& x) { return a(x) * b(x); }
  Mlp a{nullptr}, b{nullptr};
};
TORCH_MODULE(Branches);

TEST(Placement, BranchesMeetWhereTheRulesSay) {
  const Tensor x = torch::randn({3, 2});
  Branches net = make<Branches>();
  const Tensor expected = forward_on_one(net, x);
  parallelize_pipeline(net,
                       {{"", device(0)}, {"a", device(1)}, {"b", device(2)}});
  EXPECT_EQ(net(x).device(), device(0)) << "the root's";
  expect_equal({net(x)}, {expected});
  unparallelize_pipeline(net);

  parallelize_pipeline(
      net, {{"", device(0)}, {"a", device(1)}, {"b", {device(2), device(1)}}});
  EXPECT_EQ(net(x).device(), device(1)) << "b's output is expected there";
  unparallelize_pipeline(net);

  parallelize_pipeline(net, {{"", device(0)},
                             {"a", {device(1), device(3)}},
                             {"b", {device(2), device(3)}}});
  EXPECT_EQ(net(x).device(), device(3)) << "both are";
  unparallelize_pipeline(net);

  if (device(1) == device(2)) return;
  parallelize_pipeline(net, {{"a", device(1)}, {"b", device(2)}});
  EXPECT_NE(error_of([&] { net(x); }).find("device"), std::string::npos)
      << "no module contains both";
}

TEST(Placement, InPlaceAndTransposedWeights) {
  struct NetImpl : torch::nn::Module {
    NetImpl() {
      a = register_module("a", Linear(2, 2));
      b = register_module("b", Linear(2, 2));
    }
    Tensor forward(const Tensor& x) {
      Tensor y = a(x);
      y.add_(b(x));
      const Tensor both = a->weight.matmul(b->weight.t());
      return y.matmul(b->weight.t()) + x.mm(both);
    }
    Linear a{nullptr}, b{nullptr};
  };
  const Tensor x = torch::randn({3, 2});
  const auto run = [&](bool in_parts) {
    torch::manual_seed(1);
    auto net = std::make_shared<NetImpl>();
    if (in_parts) {
      parallelize_pipeline(
          net, {{"", device(0)}, {"a", device(1)}, {"b", device(2)}});
      return train(net, x);
    }
    net->to(reference_device());
    return train(net, x.to(reference_device()));
  };
  expect_equal(run(true), run(false));
}

// --- Threads, double backward, checkpointing --------------------------------

TEST(Placement, TwoModulesOnTwoThreads) {
  const Tensor x = torch::randn({4, 6});
  const auto expected = train_on_one<Residual>(x);
  std::vector<Residual> nets = {make<Residual>(), make<Residual>()};
  parallelize_pipeline(nets[0], {{"", device(0)}, {"second", device(1)}});
  parallelize_pipeline(nets[1], {{"", device(2)}, {"first", device(3)}});
  std::vector<std::vector<Tensor>> results(2);
  std::vector<std::thread> threads;
  for (int k = 0; k < 2; ++k) {
    threads.emplace_back([&, k] { results[k] = train(nets[k], x); });
  }
  for (std::thread& each : threads) each.join();
  expect_equal(results[0], expected);
  expect_equal(results[1], expected);
}

// A net on four devices, or on one, and an input of it that requires grad.
struct NetAndInput {
  NetAndInput(const Tensor& x, bool in_parts) : net(make<Branches>()->a) {
    if (in_parts) {
      parallelize_pipeline(net, {{"up", {device(1), device(0)}},
                                 {"down", {device(2), device(3)}}});
    } else {
      net->to(reference_device());
    }
    input = (in_parts ? x.clone() : x.to(reference_device()))
                .detach()
                .requires_grad_();
  }

  Mlp net;
  Tensor input;
};

TEST(Placement, GradientOfAGradient) {
  const Tensor x = torch::randn({3, 2});
  const auto run = [&](bool in_parts) {
    auto [net, input] = NetAndInput(x, in_parts);
    const Tensor slope = torch::autograd::grad({net(input).sum()}, {input}, {},
                                               true, /*create_graph=*/true)[0];
    (slope * slope).sum().backward();
    return state_of(net);
  };
  expect_equal(run(true), run(false));
}

// A user's checkpoint function: backward runs the forward again.
struct Again : torch::autograd::Function<Again> {
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor x,
                        Mlp* net) {
    context->save_for_backward({x});
    context->saved_data["net"] = reinterpret_cast<int64_t>(net);
    return (*net)(x);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list gradients) {
    auto* const net =
        reinterpret_cast<Mlp*>(context->saved_data["net"].toInt());
    const torch::AutoGradMode on(true);
    const Tensor x = context->get_saved_variables()[0].detach();
    x.requires_grad_();
    (*net)(x).backward(gradients[0]);
    return {x.grad(), Tensor()};
  }
};

TEST(Placement, AUsersCheckpoint) {
  const Tensor x = torch::randn({3, 2});
  const auto run = [&](bool in_parts) {
    auto [net, input] = NetAndInput(x, in_parts);
    Again::apply(input, &net).sum().backward();
    auto state = state_of(net);
    state.push_back(input.grad());
    return state;
  };
  expect_equal(run(true), run(false));
}

TEST(Placement, NormsOfGradientsAreClipped) {
  const Tensor x = torch::randn({4, 6});
  const auto run = [&](bool in_parts) {
    const BackwardOnOneThread one_thread;
    Residual net = make<Residual>();
    if (in_parts) {
      parallelize_pipeline(net, {{"", device(0)}, {"first", device(1)}});
    } else {
      net->to(reference_device());
    }
    net(in_parts ? x : x.to(reference_device())).sum().backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    return state_of(net);
  };
  expect_equal(run(true), run(false));
}

}  // namespace
}  // namespace gpipe
