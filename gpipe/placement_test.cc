// Tests unchanged modules whose parts are on several devices: values, gradients
// and steps equal those on one device.
#include "gpipe/placement.h"

#include <c10/core/AutogradState.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/pimpl.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/nn/utils/rnn.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdio>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/placement/tag.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"

namespace gpipe {
namespace {

using placement::kPlacementKey;
using testing::device;
using testing::error_of;
using testing::reference_device;
using torch::Tensor;
using torch::nn::Linear;

bool is_marked(const Tensor& tensor) {
  return tensor.key_set().has(kPlacementKey);
}

// --- Users' modules ---------------------------------------------------------

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t size) {
    up = register_module("up", Linear(size, 2 * size));
    down = register_module("down", Linear(2 * size, size));
  }
  Tensor forward(const Tensor& x) { return down(torch::gelu(up(x))); }
  Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Mlp);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t size) {
    norm = register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({size})));
    mlp = register_module("mlp", Mlp(size));
  }
  Tensor forward(const Tensor& x) { return x + mlp(norm(x)); }
  torch::nn::LayerNorm norm{nullptr};
  Mlp mlp{nullptr};
};
TORCH_MODULE(Block);

// A residual module, three levels deep, with its own parameter and buffer.
struct ResidualImpl : torch::nn::Module {
  ResidualImpl() {
    first = register_module("first", Block(6));
    second = register_module("second", Block(6));
    head = register_module("head", Linear(6, 3));
    scale = register_parameter("scale", torch::full({6}, 0.5));
    shift = register_buffer("shift", torch::linspace(-1, 1, 6));
  }
  Tensor forward(Tensor x) {
    x = x * scale + shift;
    const Tensor y = first(x);
    Tensor z = second(y);
    z += y;
    return head(torch::cat({z, x}, 0) + torch::cat({y, z}, 0));
  }
  Block first{nullptr}, second{nullptr};
  Linear head{nullptr};
  Tensor scale, shift;
};
TORCH_MODULE(Residual);

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

// --- Comparing --------------------------------------------------------------

// Returns a copy on the CPU.
Tensor copy_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.detach().cpu().clone() : tensor;
}

template <typename Net>
std::vector<Tensor> state_of(const Net& net) {
  std::vector<Tensor> state;
  for (const Tensor& each : net->parameters()) {
    state.push_back(copy_of(each));
    state.push_back(copy_of(each.grad()));
  }
  for (const Tensor& each : net->buffers()) state.push_back(copy_of(each));
  return state;
}

void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t k = 0; k < a.size(); ++k) {
    ASSERT_EQ(a[k].defined(), b[k].defined()) << k;
    EXPECT_TRUE(!a[k].defined() || torch::equal(a[k].cpu(), b[k].cpu()))
        << "tensor " << k << "\n"
        << a[k] << b[k];
  }
}

// Runs backward on one thread. Autograd has a thread per accelerator: if a
// value is used three times on several devices, its gradients add up in order
// of arrival, which changes the last bit. On one thread the order is the same
// as on one device.
struct BackwardOnOneThread {
  BackwardOnOneThread() {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~BackwardOnOneThread() {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(true);
  }
};

// With several threads, a kernel's sums may differ in the last bit, too.
[[maybe_unused]] const bool kernels_on_one_thread = [] {
  at::set_num_threads(1);
  return true;
}();

// Returns outputs and states of three steps.
template <typename Net>
std::vector<Tensor> train(Net net, const Tensor& input) {
  const BackwardOnOneThread one_thread;
  torch::optim::Adam optimizer(net->parameters(), 0.1);
  std::vector<Tensor> result;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor output = net->forward(input);
    result.push_back(copy_of(output));
    (output * output).sum().backward();
    optimizer.step();
    for (const Tensor& each : state_of(net)) result.push_back(each);
  }
  return result;
}

// Returns a new net with fixed initial values. Tests run one net on one device
// and a second one in parts.
template <typename Net>
Net make() {
  torch::manual_seed(3);
  return Net();
}

template <typename Net>
std::vector<Tensor> train_on_one(
    const Tensor& input, const torch::Device& where = reference_device()) {
  Net net = make<Net>();
  net->to(where);
  return train(net, input.to(where));
}

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
  const auto [sum, named] = plain->forward(x, more);

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
  const Tensor expected = net->forward(x);
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
  const Tensor expected = net(x);
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
  const Tensor expected = linear(x);
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
  const Tensor expected = net(x);
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
    }
    return train(net, x);
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

TEST(Placement, GradientOfAGradient) {
  const Tensor x = torch::randn({3, 2});
  const auto run = [&](bool in_parts) {
    Mlp net = make<Branches>()->a;
    if (in_parts) {
      parallelize_pipeline(net, {{"up", {device(1), device(0)}},
                                 {"down", {device(2), device(3)}}});
    }
    const Tensor input = x.clone().requires_grad_();
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
    Mlp net = make<Branches>()->a;
    if (in_parts) {
      parallelize_pipeline(net, {{"up", {device(1), device(0)}},
                                 {"down", {device(2), device(3)}}});
    }
    const Tensor input = x.clone().requires_grad_();
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
    }
    net(x).sum().backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    return state_of(net);
  };
  expect_equal(run(true), run(false));
}

// --- Parameters stay the same objects ---------------------------------------

TEST(Placement, ParametersAreTheSameObjectsAfterwards) {
  Mlp net(2);
  net->up->bias.requires_grad_(false);
  net(torch::ones({1, 2})).sum().backward();
  const Tensor gradient = net->down->weight.grad().clone();
  std::vector<c10::TensorImpl*> before, after;
  for (const Tensor& each : net->parameters()) {
    before.push_back(each.unsafeGetTensorImpl());
  }
  parallelize_pipeline(net, {{"up", device(0)}, {"down", device(1)}});
  for (const Tensor& each : net->parameters()) {
    after.push_back(each.unsafeGetTensorImpl());
    EXPECT_TRUE(each.is_leaf());
  }
  EXPECT_EQ(before, after);
  EXPECT_FALSE(net->up->bias.requires_grad());
  EXPECT_TRUE(net->down->bias.requires_grad());
  EXPECT_EQ(net->down->weight.grad().device(), device(1));
  EXPECT_TRUE(torch::equal(net->down->weight.grad().cpu(), gradient));
}

TEST(Placement, TypeAndValuesMayChangeAfterwards) {
  const Tensor x = torch::randn({4, 6});
  Residual saved = make<Residual>();
  std::stringstream file;
  torch::save(saved, file);

  torch::manual_seed(99);
  Residual net;
  parallelize_pipeline(net, {{"", device(0)}, {"first", device(1)}});
  torch::load(net, file);
  // torch::load() puts tensors on the devices where they were saved.
  const Tensor y = placed_forward(net, x);
  EXPECT_EQ(net->first->norm->weight.device(), device(1)) << "back again";
  EXPECT_TRUE(torch::equal(y.cpu(), saved(x)));
  EXPECT_TRUE(torch::equal(net(x).cpu(), saved(x)));

  net->to(torch::kDouble);
  saved->to(torch::kDouble);
  const Tensor wide = x.to(torch::kDouble);
  EXPECT_TRUE(torch::equal(net(wide).cpu(), saved(wide)));
}

TEST(Placement, TensorsWithAMarkPrintAndSave) {
  Linear linear(2, 2);
  const Tensor y = linear(torch::ones({1, 2})).detach();
  std::ostringstream before, after;
  before << y;
  parallelize_module(linear, device(1));
  const Tensor marked = linear(torch::ones({1, 2})).detach();
  EXPECT_TRUE(is_marked(marked));
  after << marked.cpu();
  EXPECT_EQ(before.str(), after.str());
  std::stringstream file;
  torch::save(marked.cpu(), file);
  Tensor loaded;
  torch::load(loaded, file);
  EXPECT_TRUE(torch::equal(loaded, y));
}

TEST(Placement, OtherTensorsAreNotTouched) {
  Linear parallelized(2, 2), other(2, 2);
  parallelize_module(parallelized, device(1));
  parallelized(torch::ones({1, 2})).sum().backward();

  // gpipe's kernel runs only if an argument or the thread has its dispatch key.
  // Here neither has.
  const Tensor x = torch::ones({1, 2});
  const Tensor y = other(x);
  y.sum().backward();
  for (const Tensor& each : {x, y, other->weight, other->weight.grad()}) {
    EXPECT_FALSE(is_marked(each));
    EXPECT_EQ(each.unsafeGetTensorImpl()->get_backend_meta(), nullptr);
  }
  EXPECT_FALSE(
      c10::impl::tls_local_dispatch_key_set().included_.has(kPlacementKey));
}

// --- Undoing ----------------------------------------------------------------

TEST(Placement, UndoingLeavesNoTrace) {
  const Tensor x = torch::randn({4, 6});
  Residual net = make<Residual>();
  const auto expected = train_on_one<Residual>(x);
  std::ostringstream before, during, after;
  before << net;
  std::vector<c10::DispatchKeySet> keys, keys_after;
  for (const Tensor& each : net->parameters()) keys.push_back(each.key_set());

  parallelize_pipeline(net, {{"", device(0)},
                             {"first", device(1)},
                             {"head", {device(2), device(0)}}});
  net(x).sum().backward();
  during << net;
  EXPECT_NE(
      during.str().find("(first): gpipe::(anonymous namespace)::BlockImpl "
                        "[processing_device=" +
                        device(1).str() + "](\n"),
      std::string::npos);
  unparallelize_pipeline(net, "cpu");
  net->zero_grad();

  after << net;
  EXPECT_EQ(after.str(), before.str());
  EXPECT_NE(during.str(), before.str());
  for (const Tensor& each : net->parameters()) {
    keys_after.push_back(each.key_set());
    EXPECT_EQ(each.unsafeGetTensorImpl()->get_backend_meta(), nullptr);
  }
  EXPECT_EQ(keys, keys_after);
  EXPECT_FALSE(is_marked(net(x)));
  net->to(reference_device());
  expect_equal(train(net, x.to(reference_device())), expected);
}

TEST(Placement, UndoingWithoutADeviceMovesNothing) {
  Mlp net(2);
  parallelize_pipeline(net, {{"up", device(0)}, {"down", device(1)}});
  unparallelize_pipeline(net);
  EXPECT_EQ(net->up->weight.device(), device(0));
  EXPECT_EQ(net->down->weight.device(), device(1));
  EXPECT_FALSE(is_marked(net->up->weight));
  unparallelize_module(net, torch::Device("cpu"));
  EXPECT_EQ(net->down->weight.device(), torch::Device("cpu"));
}

TEST(Placement, ModulesOneByOneInAnyOrder) {
  Residual net;
  parallelize_module(net->second->mlp, device(2));
  parallelize_module(net, device(0));
  parallelize_module(net->second, device(1));
  EXPECT_EQ(net->scale.device(), device(0));
  EXPECT_EQ(net->second->norm->weight.device(), device(1));
  EXPECT_EQ(net->second->mlp->up->weight.device(), device(2));
  unparallelize_module(net->second, device(3));
  EXPECT_EQ(net->second->norm->weight.device(), device(3));
  EXPECT_EQ(net->second->mlp->up->weight.device(), device(2)) << "stays";
  EXPECT_EQ(net(torch::ones({1, 6})).device(), device(0));
  unparallelize_module(net->second->mlp);
  unparallelize_module(net);
  EXPECT_FALSE(is_marked(net->scale));
  EXPECT_FALSE(is_marked(net->second->norm->weight));
}

TEST(Placement, ReturnsWhatItWasGiven) {
  Mlp net = parallelize_module(Mlp(2), device(0));
  MlpImpl& same = unparallelize_module(*net, "cpu");
  EXPECT_EQ(&same, net.get());
  std::shared_ptr<MlpImpl> pointer =
      parallelize_pipeline(net.ptr(), {{"up", device(0)}});
  EXPECT_EQ(pointer, net.ptr());
  MlpImpl on_the_stack(2);
  parallelize_module(on_the_stack, device(1));
  EXPECT_EQ(on_the_stack.up->weight.device(), device(1));
  const std::map<std::string, ModuleDevices> map = {{"up", device(0)}};
  EXPECT_EQ(parallelize_pipeline(Mlp(2), map)->up->weight.device(), device(0));
}

TEST(Placement, AModuleAtTheSameAddressIsAnotherOne) {
  for (int k = 0; k < 3; ++k) {
    MlpImpl net(2);
    parallelize_module(net, device(0));  // never unparallelized
  }
}

TEST(Placement, AModuleMayEndBeforeItsLayers) {
  Linear shared(2, 2);
  const auto use = [&](torch::nn::Module& net) {
    net.register_module("shared", shared);
    parallelize_module(net, device(0));  // never unparallelized
  };
  for (int k = 0; k < 3; ++k) {
    torch::nn::Module net;
    use(net);
    use(*std::make_unique<torch::nn::Module>());
    use(*std::make_shared<torch::nn::Module>());
  }
  Linear other(2, 2);
  parallelize_module(other, device(1));  // searches for modules around it
  EXPECT_EQ(other->weight.device(), device(1));
  unparallelize_module(shared, "cpu");
  EXPECT_FALSE(is_marked(shared->weight)) << "nothing is around it";
}

TEST(Placement, AModuleMayEndBeforeItsParameters) {
  std::vector<Tensor> kept;
  for (int k = 0; k < 3; ++k) {
    torch::nn::LinearImpl net(2, 2);
    kept.push_back(net.weight);
    parallelize_module(net, device(0));  // never unparallelized
    EXPECT_EQ(net.weight.device(), device(0));
  }
}

TEST(Placement, AModuleMayParallelizeItselfInItsConstructor) {
  struct NetImpl : MlpImpl {
    NetImpl() : MlpImpl(2) {
      parallelize_pipeline(*this, {{"", {device(0), device(3)}},
                                   {"up", device(1)},
                                   {"down", device(2)}});
    }
  };
  for (int k = 0; k < 2; ++k) {
    // The module gets its first owner after its constructor. The next call
    // removes the entries of destroyed modules.
    const auto net = std::make_shared<NetImpl>();
    parallelize_module(Linear(2, 2), device(0));
    EXPECT_EQ(placed_forward(net, torch::ones({1, 2})).device(), device(3));
    EXPECT_NE(error_of([&] { parallelize_module(net, device(1)); })
                  .find("is parallelized already (" + device(0).str() + " -> " +
                        device(3).str() + ")"),
              std::string::npos);
  }
}

// --- Text -------------------------------------------------------------------

TEST(Placement, PrintsDevices) {
  torch::nn::Sequential net(torch::nn::ReLU(), Mlp(2));
  parallelize_pipeline(net, {{"", "cpu"}, {"1.down", {"cpu", "cpu"}}});
  const std::string expected =
      "torch::nn::Sequential [processing_device=cpu](\n"
      "  (0): torch::nn::ReLU()\n"
      "  (1): gpipe::(anonymous namespace)::MlpImpl(\n"
      "    (up): torch::nn::Linear(in_features=2, out_features=4, bias=true)\n"
      "    (down): torch::nn::Linear(in_features=4, out_features=2, bias=true) "
      "[processing_device=cpu, output_device=cpu]\n"
      "  )\n"
      ")";
  std::ostringstream holder, object, base;
  holder << net;
  object << *net;
  torch::nn::Module& module = *net;
  base << module;
  EXPECT_EQ(holder.str(), expected);
  EXPECT_EQ(object.str(), expected);
  EXPECT_EQ(base.str(), expected);
}

TEST(Placement, UnknownNamesAreAnsweredWithTheNearest) {
  Residual net;
  EXPECT_EQ(
      error_of([&] {
        parallelize_pipeline(net, {{"", "cpu"}, {"second.mpl.up", "cpu"}});
      }),
      "c10::ValueError: 'gpipe::(anonymous namespace)::ResidualImpl' has no "
      "module 'second.mpl.up'; the nearest are 'second.mlp.up', "
      "'second.mlp' and 'second.norm' ('' is the root)");
  EXPECT_FALSE(is_marked(net->scale)) << "nothing is done";
  EXPECT_EQ(error_of([&] { parallelize_module(net, "cuba:0"); })
                .rfind("c10::ValueError: unknown type of device 'cuba' in "
                       "'cuba:0'; the nearest that LibTorch knows are 'cuda', "
                       "'cpu' and 'fpga'; ",
                       0),
            0u);
}

TEST(Placement, TwiceIsAnError) {
  Residual net;
  parallelize_module(net->first, "cpu", "cpu");
  EXPECT_EQ(error_of([&] { parallelize_module(net->first, "cpu"); }),
            "c10::ValueError: the module 'gpipe::(anonymous namespace)::"
            "BlockImpl' is parallelized already (cpu -> cpu); call "
            "unparallelize_module() first");
  EXPECT_EQ(error_of([&] {
              parallelize_pipeline(net, {{"head", "cpu"}});
            }),
            "c10::ValueError: the module 'first' (gpipe::(anonymous namespace)"
            "::BlockImpl) of 'gpipe::(anonymous namespace)::ResidualImpl' is "
            "parallelized already (cpu -> cpu); call unparallelize_pipeline() "
            "first");
  unparallelize_pipeline(net);
  EXPECT_EQ(error_of([&] {
              parallelize_pipeline(net, {{"head", "cpu"}, {"head", "cpu"}});
            }),
            "c10::ValueError: the modules 'head' and 'head' of "
            "'gpipe::(anonymous namespace)::ResidualImpl' are the same one; "
            "give it devices once");
  EXPECT_EQ(error_of([&] { parallelize_module(Residual(nullptr), "cpu"); }),
            "c10::ValueError: there is no module in the holder");
}

struct WithPipelineImpl : torch::nn::Module {
  WithPipelineImpl()
      : pipeline(register_module(
            "pipeline",
            GPipe(torch::nn::Sequential(Linear(2, 2), Linear(2, 2)),
                  GPipeOptions({1, 1}).devices({device(0), device(1)})))),
        head(register_module("head", Linear(2, 2))) {}
  Tensor forward(const Tensor& x) {
    return head(pipeline->forward(x).to(device(2)));
  }
  GPipe pipeline;
  Linear head;
};
TORCH_MODULE(WithPipeline);

TEST(Placement, APipelineKeepsItsDevices) {
  WithPipeline net;
  const Tensor x = torch::ones({4, 2}).to(device());
  const auto& layers = net->pipeline->parameters();
  const auto text = [](const std::string& name, const std::string& type) {
    return "c10::ValueError: the module '" + name + "' (gpipe::GPipe) of '" +
           type +
           "' is a pipeline, which chooses the devices of its "
           "parameters itself; name only modules that neither contain it nor "
           "are part of it, and choose its devices when you construct it";
  };
  const std::string type = "gpipe::(anonymous namespace)::WithPipelineImpl";
  EXPECT_EQ(error_of([&] {
              parallelize_pipeline(net, {{"", "cpu"}});
            }),
            text("pipeline", type));
  EXPECT_EQ(error_of([&] {
              parallelize_pipeline(net, {{"pipeline.1", "cpu"}});
            }),
            text("pipeline", type));
  EXPECT_EQ(error_of([&] { parallelize_module(net, "cpu"); }),
            text("pipeline", type));
  EXPECT_EQ(error_of([&] { parallelize_module(net->pipeline, "cpu"); }),
            text("", "gpipe::GPipe"));
  EXPECT_EQ(error_of([&] { unparallelize_pipeline(net, "cpu"); }),
            text("pipeline", type));
  for (const Tensor& each : net->parameters()) EXPECT_FALSE(is_marked(each));
  EXPECT_EQ(layers.front().device(), device(0));
  EXPECT_EQ(layers.back().device(), device(1));

  // Modules beside the pipeline may be parallelized.
  parallelize_pipeline(net, {{"head", device(2)}});
  const Tensor y = net->forward(x);
  y.sum().backward();
  EXPECT_TRUE(layers.front().grad().defined());
  EXPECT_EQ(y.device(), device(2));
  unparallelize_pipeline(net);
  for (const Tensor& each : net->parameters()) EXPECT_FALSE(is_marked(each));
}

TEST(Placement, MetaIsADeviceToo) {
  Residual net;
  parallelize_pipeline(net, {{"", "meta"}, {"second", "meta"}});
  EXPECT_EQ(net->second->mlp->up->weight.device(), torch::Device("meta"));
  EXPECT_EQ(net->head->weight.device(), torch::Device("meta"));
  const Tensor y = net->head(torch::ones({5, 6}));
  EXPECT_EQ(y.device(), torch::Device("meta"));
  EXPECT_EQ(y.sizes(), torch::IntArrayRef({5, 3}));
  EXPECT_NE(error_of([&] {
              unparallelize_pipeline(net, "cpu");
            }).find("Cannot copy out of meta tensor"),
            std::string::npos);
}

}  // namespace
}  // namespace gpipe
