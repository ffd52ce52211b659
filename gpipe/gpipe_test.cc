// Tests the construction of a GPipe, and GPipe as a container of layers.
#include "gpipe/gpipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/schedule.h"
#include "gpipe/skip.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"
#include "gpipe/testing/process.h"

namespace gpipe {
namespace {

using testing::count_threads;
using testing::device;
using testing::devices;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kModes;
using testing::layer;
using testing::options;
using ::testing::StartsWith;
using torch::Tensor;

constexpr char kRemedy[] = "gpipe::balancing::balance_by_time";

const torch::Device kCpu(torch::kCPU);
const torch::Device kCuda0("cuda:0");
const torch::Device kCuda1("cuda:1");

torch::nn::Sequential two_layers() {
  torch::nn::Sequential model;
  model->push_back("a", torch::nn::Linear(1, 1));
  model->push_back("b", torch::nn::Linear(1, 1));
  return model;
}

std::string construction_error(torch::nn::Sequential model,
                               GPipeOptions options) {
  return error_of([&] { GPipe(model, options); });
}

TEST(Construction, KeepsWhatItWasGiven) {
  GPipe pipeline(two_layers(), GPipeOptions({1, 1})
                                   .devices(devices(2))
                                   .chunks(42)
                                   .checkpoint(Checkpoint::kAlways));
  EXPECT_THAT(pipeline->balance(), ElementsAre(1, 1));
  EXPECT_THAT(pipeline->devices(), ElementsAreArray(devices(2)));
  EXPECT_EQ(pipeline->chunks(), 42);
  EXPECT_EQ(pipeline->checkpoint(), Checkpoint::kAlways);
}

TEST(Construction, DefaultsToOneChunkAndExceptLast) {
  GPipe pipeline(two_layers(), GPipeOptions({2}));
  EXPECT_EQ(pipeline->chunks(), 1);
  EXPECT_EQ(pipeline->checkpoint(), Checkpoint::kExceptLast);
  EXPECT_EQ(pipeline->devices().size(), 1u);
  // The machine of the CPU variant may have a GPU.
  if (!device().is_cpu()) {
    EXPECT_THAT(pipeline->devices(), ElementsAre(device()));
  }
  EXPECT_EQ(pipeline->last_failure(), std::nullopt);
}

TEST(Construction, DropsExtraDevices) {
  GPipe pipeline(two_layers(), GPipeOptions({1, 1}).devices(
                                   {device(0), device(1), kCpu, kCuda0}));
  EXPECT_THAT(pipeline->devices(), ElementsAreArray(devices(2)));
}

TEST(Construction, EveryModeCanBeBuiltWithOneChunk) {
  for (const Checkpoint mode : kModes) {
    GPipe pipeline(two_layers(), options({1, 1}, 1, mode));
    EXPECT_TRUE(
        torch::isfinite(pipeline->forward(torch::ones({2, 1}).to(device())))
            .all()
            .item<bool>());
  }
}

TEST(Construction, MovesLayersToTheDevicesOfTheirPartitions) {
  auto model = testing::conv_model();
  GPipe pipeline(model, options({1, 1, 6}));
  for (std::size_t k = 0; k < model->size(); ++k) {
    const auto wanted = device(std::min<int64_t>(static_cast<int64_t>(k), 2));
    for (const Tensor& each : model[k]->parameters()) {
      EXPECT_EQ(each.device(), wanted);
    }
    for (const Tensor& each : model[k]->buffers()) {
      EXPECT_EQ(each.device(), wanted);
    }
  }
}

TEST(Construction, RefusesABalanceOfAnotherLength) {
  for (const int64_t layers : {1, 3}) {
    const auto error = construction_error(two_layers(), GPipeOptions({layers}));
    EXPECT_THAT(error, StartsWith("c10::ValueError: module and sum of balance "
                                  "have different length (module: 2, sum of "
                                  "balance: " +
                                  std::to_string(layers)));
    EXPECT_THAT(error, HasSubstr(kRemedy));
  }
  EXPECT_THAT(construction_error(torch::nn::Sequential(), GPipeOptions({1})),
              HasSubstr("(module: 0, sum of balance: 1"));
  EXPECT_THAT(
      construction_error(two_layers(), GPipeOptions(std::vector<int64_t>())),
      HasSubstr("(module: 2, sum of balance: 0"));
}

TEST(Construction, WithoutLayersAPipelineOnlyReturnsItsInput) {
  const std::vector<int64_t> none;
  GPipe pipeline(torch::nn::Sequential{}, GPipeOptions(none));
  EXPECT_EQ(pipeline->device(), kCpu);
  const Tensor x = torch::ones({2, 1});
  EXPECT_TRUE(torch::equal(pipeline->forward(x), x));
  const auto loss = [](const Tensor& y, const Tensor&) { return y.sum(); };
  EXPECT_THAT(error_of([&] { pipeline->evaluate(x, x, loss); }),
              StartsWith("c10::ValueError: a pipeline without layers"));
  EXPECT_THAT(
      error_of([&] { pipeline->train_step(x, x, loss, fill_drain(1, 1)); }),
      StartsWith("c10::ValueError: a pipeline without layers"));
}

TEST(Construction, RefusesABalanceWithAnEntryBelowOne) {
  for (const auto& balance :
       std::vector<std::vector<int64_t>>{{0, 2}, {-1, 3}, {2, 0}}) {
    const auto error = construction_error(two_layers(), GPipeOptions(balance));
    EXPECT_THAT(error, StartsWith("c10::ValueError: all balance numbers must "
                                  "be positive integer (balance: "));
    EXPECT_THAT(error, HasSubstr(std::to_string(balance[0])));
    EXPECT_THAT(error, HasSubstr(kRemedy));
  }
}

TEST(Construction, RefusesFewerChunksThanOne) {
  for (const int64_t chunks : {0, -1}) {
    EXPECT_EQ(
        construction_error(two_layers(), GPipeOptions({2}).chunks(chunks)),
        "c10::ValueError: number of chunks must be positive integer "
        "(chunks: " +
            std::to_string(chunks) +
            "); begin with 4 per partition, or let balancing::plan() choose");
  }
}

TEST(Construction, RefusesThreadsThatNoMachineHas) {
  for (const int64_t threads : {int64_t{-1}, (int64_t{1} << 32) + 1}) {
    EXPECT_EQ(
        construction_error(two_layers(),
                           GPipeOptions({2}).threads_per_partition(threads)),
        "c10::ValueError: threads_per_partition must be between 0, for "
        "the default, and 2147483647 (threads_per_partition: " +
            std::to_string(threads) + ")");
  }
}

TEST(Construction, RefusesFewerDevicesThanPartitions) {
  EXPECT_THAT(
      construction_error(two_layers(),
                         GPipeOptions({1, 1}).devices({device()})),
      StartsWith("c10::IndexError: too few devices to hold given partitions "
                 "(devices: 1, partitions: 2)"));
}

TEST(Construction, RefusesANullModule) {
  EXPECT_EQ(
      construction_error(torch::nn::Sequential(nullptr), GPipeOptions({1})),
      "c10::ValueError: the module is null");
}

TEST(Construction, RefusesTheSameLayerTwice) {
  torch::nn::Linear same(1, 1);
  torch::nn::Sequential model;
  model->push_back("first", same);
  model->push_back("again", same);
  EXPECT_EQ(construction_error(model, GPipeOptions({1, 1})),
            "c10::ValueError: module with duplicate layers is not supported: "
            "layers 'first' and 'again' are the same object; make a second "
            "one");
}

TEST(Construction, RefusesSkipsThatDoNotMatch) {
  struct Stash : torch::nn::Module, Skippable {
    Stash() : Skippable({{"skip"}, {}}) {}
    Tensor forward(Tensor x) { return x; }
  };
  torch::nn::Sequential model;
  model->push_back(std::make_shared<Stash>());
  EXPECT_EQ(construction_error(model, GPipeOptions({1})),
            "c10::TypeError: one or more pairs of stash and pop do not match:\n"
            "\n* no module declared 'skip' as poppable but stashed");
}

// Two layers that contain the same convolution.
torch::nn::Sequential sharing_model() {
  struct Wrapper : torch::nn::Module {
    explicit Wrapper(torch::nn::Conv2d conv)
        : conv(register_module("conv", conv)) {}
    Tensor forward(Tensor x) { return conv(x); }
    torch::nn::Conv2d conv;
  };
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 3, 1));
  torch::nn::Sequential model;
  model->push_back(std::make_shared<Wrapper>(conv));
  model->push_back(std::make_shared<Wrapper>(conv));
  model->to(torch::kDouble);
  return model;
}

// The check runs before tensors are moved, so this test needs no GPU.
TEST(Construction, RefusesAParameterSharedBetweenDevices) {
  const auto error = construction_error(
      sharing_model(), GPipeOptions({1, 1}).devices({kCpu, kCuda0}));
  EXPECT_THAT(error, StartsWith("c10::ValueError: module with a parameter "
                                "shared by partitions on different devices is "
                                "not supported: '0.conv.weight' (partition 0 "
                                "on cpu) and '1.conv.weight' (partition 1 on "
                                "cuda:0) are the same; choose a balance that "
                                "puts both into one partition, or the same "
                                "device for both"));
  EXPECT_THAT(error, HasSubstr(kRemedy));
}

TEST(Construction, RefusesBuffersSharedBetweenPartitions) {
  struct Masked : torch::nn::Module {
    explicit Masked(const Tensor& mask) : mask(register_buffer("mask", mask)) {}
    Tensor forward(const Tensor& x) { return x * mask; }
    Tensor mask;
  };
  const Tensor mask = torch::ones({3});
  torch::nn::Sequential masked(std::make_shared<Masked>(mask),
                               std::make_shared<Masked>(mask));
  EXPECT_THAT(
      construction_error(masked, GPipeOptions({1, 1}).devices({kCpu, kCuda0})),
      StartsWith("c10::ValueError: module with a buffer shared by "
                 "partitions on different devices is not supported: "
                 "'0.mask' (partition 0 on cpu) and '1.mask' "
                 "(partition 1 on cuda:0) are the same"));
  EXPECT_EQ(
      construction_error(masked, GPipeOptions({1, 1}).devices({kCpu, kCpu})),
      "");

  struct Norms : torch::nn::Module {
    explicit Norms(torch::nn::BatchNorm2d norm)
        : norm(register_module("norm", norm)) {}
    Tensor forward(const Tensor& x) { return norm(x); }
    torch::nn::BatchNorm2d norm;
  };
  const torch::nn::BatchNorm2d norm(3);
  torch::nn::Sequential norms(std::make_shared<Norms>(norm),
                              std::make_shared<Norms>(norm));
  EXPECT_THAT(
      construction_error(norms, GPipeOptions({1, 1}).devices({kCpu, kCpu})),
      StartsWith("c10::ValueError: module with running statistics shared by "
                 "partitions is not supported: '0.norm.running_mean' "
                 "(partition 0) and '1.norm.running_mean' (partition 1) are "
                 "the same"));
  EXPECT_EQ(construction_error(norms, GPipeOptions({2}).devices({kCpu})), "");
}

TEST(Construction, LeavesNothingBehindWhenItFails) {
  auto model = sharing_model();
  model[0]->train();
  model[1]->eval();
  const auto before = count_threads();
  const auto* weight = model->parameters()[0].unsafeGetTensorImpl();
  for (const auto& options : {GPipeOptions({1, 1}).devices({kCuda0, kCuda1}),
                              GPipeOptions({1, 1}).devices({kCpu}),
                              GPipeOptions({3}), GPipeOptions({2}).chunks(0)}) {
    EXPECT_NE(construction_error(model, options), "");
  }
  EXPECT_EQ(count_threads(), before);
  EXPECT_EQ(model->parameters()[0].unsafeGetTensorImpl(), weight);
  EXPECT_EQ(model->parameters()[0].device(), kCpu);
  EXPECT_TRUE(model[0]->is_training());
  EXPECT_FALSE(model[1]->is_training());
}

// The number of threads that have run counting_layer() and have not ended.
std::atomic<int> live_threads{0};

torch::nn::AnyModule counting_layer() {
  struct Here {
    Here() { ++live_threads; }
    ~Here() { --live_threads; }
  };
  return layer([](Tensor x) {
    [[maybe_unused]] thread_local const Here here;
    return x;
  });
}

TEST(Destruction, EndsTheWorkers) {
  const auto run = [](auto&& look) {
    torch::nn::Sequential model(counting_layer(), torch::nn::Linear(1, 1),
                                counting_layer(), torch::nn::Linear(1, 1));
    GPipe pipeline(model, options({2, 2}));
    pipeline->forward(torch::ones({2, 1}).to(device()));
    look();
  };
  run([] {});
  const auto before = count_threads();
  for (int k = 0; k < 3; ++k) {
    run([&] {
      EXPECT_EQ(live_threads, 2);
      // Accelerators may start threads of their own and keep them.
      if (device().is_cpu()) {
        EXPECT_EQ(count_threads(), before + 2);
      }
    });
    EXPECT_EQ(live_threads, 0);
  }
  if (device().is_cpu()) {
    EXPECT_EQ(count_threads(), before);
  }
}

TEST(Sharing, OnOneDeviceGivesOneSummedGradient) {
  torch::manual_seed(0);
  auto model = sharing_model();
  const Tensor input = torch::randn({4, 3, 2, 2}, torch::kDouble);
  const auto plain = testing::plain_step(model, input, 2);
  for (const auto& balance : std::vector<std::vector<int64_t>>{{2}, {1, 1}}) {
    for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
      GPipe pipeline(model,
                     GPipeOptions(balance).chunks(2).checkpoint(mode).devices(
                         {device(), device()}));
      const auto state = testing::training_step(pipeline, input);
      EXPECT_LE(testing::distance(state, plain), 1e-12);
    }
  }
}

TEST(ClipGradNorm, IsOverAllPartitionsAndCountsASharedParameterOnce) {
  torch::manual_seed(0);
  auto model = sharing_model();
  model->push_back(torch::nn::Conv2d(3, 3, 1));
  model->to(torch::kDouble);
  GPipe pipeline(model, GPipeOptions({2, 1}).devices(devices(2)).chunks(2));
  const Tensor input = torch::randn({4, 3, 2, 2}, torch::kDouble);
  pipeline->forward(input.to(device(0))).pow(2).sum().backward();

  std::vector<Tensor> grads, once;
  for (const std::size_t k : {0, 1, 4, 5}) {  // 2 and 3 repeat 0 and 1
    grads.push_back(pipeline->parameters()[k].grad());
    once.push_back(grads.back().clone().to(testing::reference_device()));
    once.back().mutable_grad() = once.back().clone();
  }
  EXPECT_EQ(pipeline->clip_grad_norm_(0.5),
            torch::nn::utils::clip_grad_norm_(once, 0.5));
  EXPECT_EQ(testing::difference(grads, testing::grads_of(once)), "");
}

struct HoldsAPipelineImpl : torch::nn::Module {
  explicit HoldsAPipelineImpl(GPipe pipeline_in) : pipeline(pipeline_in) {
    register_module("pipeline", pipeline);
  }
  Tensor forward(const Tensor& x) { return pipeline->forward(x); }
  GPipe pipeline;
};
TORCH_MODULE(HoldsAPipeline);

TEST(Construction, RefusesToMoveAPipelineInsideOfALayerAndMovesNothing) {
  if (device(0) == device(1)) GTEST_SKIP() << "there is one device only";
  torch::nn::Linear first(2, 2);
  GPipe inner(torch::nn::Sequential(torch::nn::Linear(2, 2)),
              GPipeOptions({1}).devices({device(1)}));
  torch::nn::Sequential model(first, HoldsAPipeline(inner));
  const auto before = first->weight.device();
  EXPECT_THAT(
      error_of([&] {
        GPipe(model, GPipeOptions({1, 1}).devices({device(1), device(0)}));
      }),
      HasSubstr("c10::TypeError: layer '1' holds a GPipe and cannot be "
                "moved to " +
                device(0).str()));
  EXPECT_EQ(first->weight.device(), before);
}

TEST(Container, HoldsTheLayersInOrder) {
  for (const auto& balance : std::vector<std::vector<int64_t>>{{2}, {1, 1}}) {
    auto model = two_layers();
    GPipe pipeline(model, options(balance));
    EXPECT_EQ(pipeline->size(), 2);
    EXPECT_FALSE(pipeline->is_empty());
    EXPECT_EQ((*pipeline)[0], model->ptr(0));
    EXPECT_EQ((*pipeline)[1], model->ptr(1));
    EXPECT_EQ((*pipeline)[-1], model->ptr(1));
    EXPECT_EQ((*pipeline)[-2], model->ptr(0));
    std::vector<std::shared_ptr<torch::nn::Module>> layers;
    for (auto& each : *pipeline) layers.push_back(each.ptr());
    EXPECT_THAT(layers, ElementsAre(model->ptr(0), model->ptr(1)));
    const auto& constant = *pipeline;
    EXPECT_EQ(std::distance(constant.begin(), constant.end()), 2);
  }
}

// The pipeline runs the layers that it was made of.
TEST(Container, RefusesLayersThatAreAddedToTheSequential) {
  auto model = two_layers();
  GPipe pipeline(model, options({1, 1}));
  const Tensor x = torch::ones({2, 1}).to(device());
  pipeline->forward(x);
  model->push_back("c", torch::nn::Linear(1, 1));
  const auto refused = StartsWith(
      "c10::ValueError: the Sequential has 3 layers now, but it had 2 when the "
      "pipeline was made of it");
  EXPECT_THAT(error_of([&] { pipeline->forward(x); }), refused);
  const auto loss = [](Tensor output, Tensor) { return output.sum(); };
  EXPECT_THAT(
      error_of([&] { pipeline->train_step(x, x, loss, fill_drain(2, 2)); }),
      refused);
  EXPECT_THAT(error_of([&] { pipeline->evaluate(x, x, loss); }), refused);
  // Without the Sequential, the pipeline is complete.
  model = nullptr;
  pipeline->forward(x);
}

TEST(Container, RefusesLayersThatAreReplacedOrUnregistered) {
  const std::vector<std::function<void(GPipe&)>> changes = {
      [](GPipe& pipeline) {
        pipeline->replace_module("b", torch::nn::Linear(1, 1));
      },
      [](GPipe& pipeline) { pipeline->unregister_module("b"); }};
  const Tensor x = torch::ones({2, 1}).to(device());
  const auto loss = [](Tensor output, Tensor) { return output.sum(); };
  const std::string refused =
      "c10::ValueError: layer 1 has been replaced in the pipeline or "
      "unregistered from it, but the pipeline runs the layers that it was made "
      "of; change the Sequential, and make the pipeline of it again";
  for (const auto& change : changes) {
    GPipe pipeline(two_layers(), options({1, 1}));
    // A module that is registered besides is no layer.
    pipeline->register_module("loss", torch::nn::Linear(1, 1));
    pipeline->forward(x);
    change(pipeline);
    EXPECT_EQ(error_of([&] { pipeline->forward(x); }), refused);
    EXPECT_EQ(
        error_of([&] { pipeline->train_step(x, x, loss, fill_drain(2, 2)); }),
        refused);
    EXPECT_EQ(error_of([&] { pipeline->evaluate(x, x, loss); }), refused);
  }
}

TEST(Container, RunsALayerThatIsRegisteredAgain) {
  GPipe pipeline(two_layers(), options({1, 1}));
  const Tensor x = torch::ones({2, 1}).to(device());
  const Tensor output = pipeline->forward(x);
  const auto first = (*pipeline)[0];
  const std::string name = pipeline->named_children()[0].key();
  pipeline->unregister_module(name);
  pipeline->register_module(name, first);  // behind the other layer
  EXPECT_TRUE(pipeline->forward(x).equal(output));
}

struct NormedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return norm(x); }
  torch::nn::BatchNorm1d norm =
      register_module("norm", torch::nn::BatchNorm1d(1));
};

TEST(Container, RefusesStatisticsThatTwoPartitionsShareLater) {
  const auto a = std::make_shared<NormedImpl>();
  const auto b = std::make_shared<NormedImpl>();
  GPipe pipeline(torch::nn::Sequential(a, b), options({1, 1}));
  const Tensor x = torch::arange(4.F).view({4, 1}).to(device());
  pipeline->forward(x);
  const auto own = b->norm;
  b->norm = b->replace_module("norm", a->norm);
  for (int step = 0; step < 2; ++step) {
    EXPECT_THAT(error_of([&] { pipeline->forward(x); }),
                HasSubstr("shared by partitions"));
  }
  EXPECT_EQ(a->norm->num_batches_tracked.item<int64_t>(), 1);
  b->norm = b->replace_module("norm", own);
  pipeline->forward(x);
  EXPECT_EQ(a->norm->num_batches_tracked.item<int64_t>(), 2);
}

TEST(Container, GivesOutputsApartFromABufferOfTheFirstCall) {
  struct SumImpl : torch::nn::Module {
    Tensor forward(const Tensor& x) {
      if (!sum.defined()) sum = register_buffer("sum", torch::zeros_like(x));
      return sum.add_(x);
    }
    Tensor sum;
  };
  GPipe pipeline(
      torch::nn::Sequential(std::make_shared<SumImpl>(), torch::nn::Identity()),
      options({1, 1}, 2));
  const torch::NoGradGuard no_grad;
  const Tensor output =
      pipeline->forward(torch::tensor({{1.F}, {2.F}}).to(device()));
  EXPECT_TRUE(output.cpu().equal(torch::tensor({{1.F}, {3.F}})));
}

TEST(Container, RefusesAnIndexOutOfRange) {
  GPipe pipeline(two_layers(), options({2}));
  EXPECT_EQ(error_of([&] { (*pipeline)[2]; }),
            "c10::IndexError: layer index 2 is out of range (layers: 2)");
  EXPECT_EQ(error_of([&] { (*pipeline)[-3]; }),
            "c10::IndexError: layer index -3 is out of range (layers: 2)");
}

TEST(Container, NamesAreThoseOfTheSequential) {
  auto model = testing::conv_model(0.1);
  GPipe pipeline(model, options({1, 3, 4}));
  EXPECT_EQ(pipeline->named_parameters().keys(),
            model->named_parameters().keys());
  EXPECT_EQ(pipeline->named_buffers().keys(), model->named_buffers().keys());
  for (const auto& named : model->named_parameters()) {
    EXPECT_TRUE(
        named.value().is_same(pipeline->named_parameters()[named.key()]));
  }
  GPipe by_name(two_layers(), options({1, 1}));
  EXPECT_THAT(by_name->named_parameters().keys(),
              ElementsAre("a.weight", "a.bias", "b.weight", "b.bias"));
}

TEST(Container, KeepsTheModesOfLayers) {
  auto model = testing::conv_model(0.5);
  model[3]->eval();
  GPipe pipeline(model, options({4, 4}));
  EXPECT_TRUE(pipeline->is_training());
  EXPECT_FALSE(model[3]->is_training());
  EXPECT_TRUE(model[5]->is_training());
  pipeline->eval();
  EXPECT_FALSE(model[5]->is_training());

  auto in_eval = two_layers();
  in_eval->eval();
  EXPECT_FALSE(GPipe(in_eval, options({2}))->is_training());
}

TEST(Cloning, IsDeniedWithWhatToDo) {
  auto model = two_layers();
  GPipe pipeline(model, options({1, 1}));
  EXPECT_THAT(error_of([&] { pipeline->clone(); }),
              StartsWith("c10::TypeError: a GPipe cannot be cloned; make "
                         "another GPipe of a clone of the Sequential"));
  // The remedy of the error.
  torch::nn::Sequential copy(
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone()));
  GPipe another(copy, options({1, 1}));
  const Tensor x = torch::ones({2, 1}).to(device());
  EXPECT_TRUE(torch::equal(another->forward(x), pipeline->forward(x)));
  EXPECT_FALSE(another->parameters()[0].is_alias_of(pipeline->parameters()[0]));
}

TEST(Moving, ToADeviceIsDenied) {
  GPipe pipeline(two_layers(), options({1, 1}));
  const auto denied = StartsWith(
      "c10::TypeError: denied to move parameters and buffers, because GPipe "
      "should manage device placement");
  EXPECT_THAT(error_of([&] { pipeline->to(kCpu); }), denied);
  EXPECT_THAT(error_of([&] { pipeline->to(kCuda0); }), denied);
  EXPECT_THAT(error_of([&] { pipeline->to(device()); }), denied);
  EXPECT_THAT(error_of([&] { pipeline->to(kCpu, torch::kDouble); }), denied);
  EXPECT_THAT(error_of([&] { pipeline->cuda(); }), denied);
  EXPECT_THAT(error_of([&] { pipeline->cpu(); }), denied);
  torch::nn::Module& base = *pipeline;
  EXPECT_THAT(error_of([&] { base.to(kCpu); }), denied);
  EXPECT_EQ(pipeline->parameters()[0].dtype(), torch::kFloat);
}

TEST(Moving, ToADtypeIsAllowedAndTrains) {
  GPipe pipeline(two_layers(), options({1, 1}, 2));
  for (const auto dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    pipeline->to(dtype);
    torch::optim::SGD optimizer(pipeline->parameters(), 0.1);
    optimizer.zero_grad();
    const auto before = pipeline->parameters()[0].detach().clone();
    auto output = pipeline->forward(torch::ones({4, 1}, dtype).to(device()));
    EXPECT_EQ(output.scalar_type(), dtype);
    output.sum().backward();
    optimizer.step();
    EXPECT_EQ(before.scalar_type(), dtype);
    EXPECT_FALSE(torch::equal(pipeline->parameters()[0], before));
  }
}

TEST(Moving, ToADtypeKeepsCountersAndMasks) {
  torch::nn::Sequential layers = two_layers();
  layers->push_back(torch::nn::BatchNorm1d(1));
  const Tensor mask = layers->ptr(0)->register_buffer(
      "mask", torch::tensor({true, false}, device()));
  layers->ptr(1)->register_parameter(
      "codes", torch::tensor({257}, device()).to(torch::kInt),
      /*requires_grad=*/false);
  GPipe pipeline(layers, options({1, 2}));
  pipeline->to(torch::kBFloat16);
  for (int k = 0; k < 257; ++k) {
    pipeline->forward(torch::ones({2, 1}, torch::kBFloat16).to(device()));
  }
  const auto buffers = pipeline->named_buffers();
  EXPECT_EQ(buffers["2.running_mean"].scalar_type(), torch::kBFloat16);
  // bfloat16 has no 257.
  EXPECT_EQ(buffers["2.num_batches_tracked"].item<int64_t>(), 257);
  EXPECT_EQ(buffers["2.num_batches_tracked"].scalar_type(), torch::kLong);
  EXPECT_EQ(buffers["a.mask"].scalar_type(), torch::kBool);
  EXPECT_TRUE(mask.is_alias_of(buffers["a.mask"]));
  EXPECT_EQ(pipeline->named_parameters()["b.codes"].item<int>(), 257);
}

TEST(Moving, ToADtypeThatFailsKeepsCounters) {
  struct Full : torch::nn::Module {
    using Module::to;
    Tensor forward(Tensor x) { return x; }
    void to(torch::Dtype dtype, bool non_blocking) override {
      if (fails) throw std::runtime_error("no memory");
      Module::to(dtype, non_blocking);
    }
    bool fails = true;
  };
  const auto full = std::make_shared<Full>();
  torch::nn::Sequential layers(torch::nn::BatchNorm1d(1), full);
  GPipe pipeline(layers, options({1, 1}));
  EXPECT_THROW(pipeline->to(torch::kBFloat16), std::runtime_error);
  EXPECT_EQ(pipeline->named_buffers()["0.num_batches_tracked"].scalar_type(),
            torch::kLong);
  full->fails = false;
  pipeline->to(torch::kBFloat16);
  EXPECT_EQ(pipeline->named_buffers()["0.num_batches_tracked"].scalar_type(),
            torch::kLong);
  EXPECT_EQ(pipeline->named_buffers()["0.running_mean"].scalar_type(),
            torch::kBFloat16);
}

}  // namespace
}  // namespace gpipe
