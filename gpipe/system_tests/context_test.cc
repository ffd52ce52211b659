// Tests where a pipeline may be used: on any thread, inside another pipeline,
// and under LibTorch's thread-local modes, which apply in the layers.
#include <ATen/Context.h>
#include <c10/util/thread_name.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <functional>
#include <future>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"
#include "training/autocast.h"

// Workers that use one parameter give its node a follower each, and LibTorch
// notes that there is one in a bool without a lock. All write the same value.
extern "C" const char* __tsan_default_suppressions() {
  return "race:torch::autograd::Node::topological_nr";
}

namespace gpipe {
namespace {

using testing::device;
using testing::difference;
using testing::distance;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kModes;
using testing::layer;
using testing::StepState;
using testing::training_step;
using torch::Tensor;
using torch::nn::Sequential;

GPipeOptions options_of(const std::vector<int64_t>& balance, int64_t chunks,
                        Checkpoint mode) {
  return testing::options(balance, chunks, mode).threads_per_partition(1);
}

StepState step(GPipe pipeline, const Tensor& input) {
  return training_step(pipeline, input);
}

Sequential linear_model(uint64_t seed) {
  torch::manual_seed(seed);
  return testing::linear_model();
}

Tensor input(int64_t rows = 8) {
  torch::manual_seed(3);
  return torch::randn({rows, 6}, torch::kDouble);
}

// --- Threads -----------------------------------------------------------------

TEST(Threads, EachPartitionHasOneOfItsOwn) {
  std::mutex mutex;
  std::vector<std::set<std::thread::id>> seen(3);
  Sequential model;
  for (int j = 0; j < 3; ++j) {
    model->push_back(layer([&, j](Tensor x) {
      std::lock_guard<std::mutex> lock(mutex);
      seen[j].insert(std::this_thread::get_id());
      return x * 1;
    }));
  }
  GPipe pipeline(model, options_of({1, 1, 1}, 4, Checkpoint::kAlways));
  for (int k = 0; k < 2; ++k) step(pipeline, input());
  std::set<std::thread::id> all{std::this_thread::get_id()};
  for (const auto& each : seen) {
    EXPECT_EQ(each.size(), 1u);
    all.insert(each.begin(), each.end());
  }
  EXPECT_EQ(all.size(), 4u);
}

// Names help to find a blocked worker in `top -H` or a debugger.
TEST(Threads, HaveTheNamesOfTheirRanks) {
  std::vector<std::string> names(3);
  Sequential model;
  for (int j = 0; j < 3; ++j) {
    model->push_back(layer([&names, j](Tensor x) {
      names[j] = c10::getThreadName();
      return x * 1;
    }));
  }
  GPipe pipeline(model, options_of({1, 1, 1}, 1, Checkpoint::kNever));
  pipeline->forward(input().to(device()));
  EXPECT_EQ(names, (std::vector<std::string>{"gpipe 0", "gpipe 1", "gpipe 2"}));
}

// Tests CPU partitions in every variant of the test.
TEST(Threads, OperatorsUseTheShareAskedFor) {
  torch::set_num_threads(4);
  const auto threads_seen = [](int64_t partitions, int64_t asked) {
    std::atomic<int> seen{0};
    Sequential model;
    for (int64_t j = 0; j < partitions; ++j) {
      model->push_back(layer([&](Tensor x) {
        seen = at::get_num_threads();
        return x;
      }));
    }
    GPipe pipeline(
        model, GPipeOptions(std::vector<int64_t>(partitions, 1))
                   .devices(std::vector<torch::Device>(partitions, torch::kCPU))
                   .threads_per_partition(asked));
    pipeline->forward(torch::ones({1}));
    return seen.load();
  };
  EXPECT_EQ(threads_seen(2, 0), 2);
  EXPECT_EQ(threads_seen(4, 0), 1);
  EXPECT_EQ(threads_seen(8, 0), 1);
  EXPECT_EQ(threads_seen(1, 0), 4);
  EXPECT_EQ(threads_seen(2, 3), 3);
  EXPECT_EQ(at::get_num_threads(), 4);
  torch::set_num_threads(1);
}

TEST(Threads, BackwardMayComeFromAnother) {
  for (const Checkpoint mode : kModes) {
    GPipe pipeline(linear_model(0), options_of({3, 3}, 2, mode));
    const auto expected = step(pipeline, input());
    pipeline->zero_grad();
    const Tensor x = input().to(device()).requires_grad_();
    auto loss = pipeline->forward(x).pow(2).sum() / 8.0;
    std::thread([&] { loss.backward(); }).join();
    EXPECT_TRUE(torch::equal(x.grad().cpu(), expected.grads[0]));
  }
}

TEST(Threads, CallsOfOnePipelineAreServedOneAfterTheOther) {
  GPipe pipeline(linear_model(0), options_of({2, 4}, 4, Checkpoint::kAlways));
  const Tensor x = input().to(device());
  const auto grad = [&] {
    const Tensor mine = x.clone().requires_grad_();
    return torch::autograd::grad({pipeline->forward(mine).sum()}, {mine})[0];
  };
  const Tensor expected = grad();
  std::atomic<int> equal{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int k = 0; k < 25; ++k) equal += torch::equal(grad(), expected);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(equal, 100);
}

TEST(Threads, DifferentPipelinesRunAtTheSameTime) {
  std::atomic<int> equal{0};
  std::vector<std::thread> threads;
  std::vector<GPipe> pipelines;
  for (int t = 0; t < 3; ++t) {
    pipelines.push_back(GPipe(
        linear_model(t), options_of({2, 2, 2}, 3, Checkpoint::kExceptLast)));
  }
  const Tensor x = input();
  for (auto& pipeline : pipelines) {
    threads.emplace_back([&equal, &x, pipeline] {
      const auto first = step(pipeline, x);
      for (int k = 0; k < 25; ++k) {
        equal += difference(step(pipeline, x), first).empty();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(equal, 75);
}

// --- Pipelines in layers -----------------------------------------------------

// A layer with a pipeline on the layer's device, so that the outer pipeline
// need not move it.
struct InnerImpl : torch::nn::Module {
  InnerImpl(Sequential model, GPipeOptions options)
      : pipeline(register_module(
            "pipeline",
            GPipe(model, options.devices(std::vector<torch::Device>(
                             options.balance().size(), device()))))) {}
  Tensor forward(Tensor x) { return pipeline->forward(x); }
  GPipe pipeline;
};
TORCH_MODULE(Inner);

TEST(Nested, PipelineInALayerEqualsPlain) {
  for (const Checkpoint outer_mode : kModes) {
    for (const Checkpoint inner_mode : kModes) {
      auto inner = linear_model(0);
      torch::nn::Linear last(3, 3);
      last->to(torch::kDouble);
      Sequential plain;
      for (auto& each : *inner) plain->push_back(each);
      plain->push_back(last);
      const auto expected = testing::plain_step(plain, input(), 1);
      GPipe pipeline(
          Sequential(Inner(inner, options_of({3, 3}, 2, inner_mode)), last),
          options_of({1, 1}, 2, outer_mode));
      EXPECT_LE(distance(step(pipeline, input()), expected), 1e-12);
    }
  }
}

TEST(Nested, DropoutIsReplayedInTheInnerPipeline) {
  for (const Checkpoint inner_mode : kModes) {
    Sequential inner(torch::nn::Dropout(0.5), torch::nn::Dropout(0.5));
    GPipe pipeline(Sequential(Inner(inner, options_of({1, 1}, 2, inner_mode))),
                   options_of({1}, 3, Checkpoint::kAlways));
    const Tensor x = torch::ones({12, 5}).to(device()).requires_grad_();
    const auto output = pipeline->forward(x);
    output.sum().backward();
    EXPECT_TRUE(torch::equal(output, x.grad()));
    EXPECT_FALSE(torch::equal(pipeline->forward(x), output));
  }
}

TEST(Nested, AGivenGeneratorIsReplayedInTheInnerPipeline) {
  std::vector<Tensor> states;
  for (const Checkpoint outer_mode : kModes) {
    for (const Checkpoint inner_mode : kModes) {
      std::vector<at::Generator> own;
      Sequential inner;
      for (const uint64_t seed : {11, 12}) {
        own.push_back(at::globalContext().defaultGenerator(device()).clone());
        own.back().set_current_seed(seed);
        inner->push_back(layer([generator = own.back()](Tensor x) {
          return x + x * torch::empty_like(x).bernoulli_(0.5, generator);
        }));
      }
      GPipe pipeline(
          Sequential(Inner(inner, options_of({1, 1}, 2, inner_mode))),
          options_of({1}, 3, outer_mode));
      const Tensor x = torch::ones({12, 5}).to(device()).requires_grad_();
      const auto output = pipeline->forward(x);
      output.sum().backward();
      EXPECT_TRUE(torch::equal(output, x.grad()));
      for (const auto& each : own) states.push_back(each.get_state());
      EXPECT_TRUE(torch::equal(states[states.size() - 2], states[0]));
      EXPECT_TRUE(torch::equal(states[states.size() - 1], states[1]));
    }
  }
}

// Each layer runs on six micro-batches of the inner pipeline: three outer ones
// with two inner ones each.
TEST(Nested, LayersAreToldOfTheOuterPipelinesRecompute) {
  for (const Checkpoint outer_mode : kModes) {
    for (const Checkpoint inner_mode : kModes) {
      std::atomic<int> checkpointing{0}, recomputing{0}, neither{0};
      Sequential inner(layer([&](Tensor x) {
        EXPECT_FALSE(is_checkpointing() && is_recomputing());
        ++(is_checkpointing() ? checkpointing
           : is_recomputing() ? recomputing
                              : neither);
        return x * 2;
      }));
      GPipe pipeline(Sequential(Inner(inner, options_of({1}, 2, inner_mode))),
                     options_of({1}, 3, outer_mode));
      const Tensor x = torch::ones({6}).to(device()).requires_grad_();
      pipeline->forward(x).sum().backward();
      const auto outer =
          static_cast<int>(checkpointed_microbatches(outer_mode, 3));
      const auto each =
          static_cast<int>(checkpointed_microbatches(inner_mode, 2));
      EXPECT_EQ(checkpointing, 2 * outer + (3 - outer) * each);
      EXPECT_EQ(neither, 6 - checkpointing);
      EXPECT_EQ(recomputing, 2 * outer + 3 * each);
    }
  }
}

TEST(Nested, ThreeDeepEqualsPlain) {
  for (const Checkpoint mode : kModes) {
    auto layers = linear_model(0);
    const auto part = [&](std::size_t first, std::size_t last) {
      Sequential some;
      for (std::size_t k = first; k < last; ++k) {
        some->push_back(*std::next(layers->begin(), k));
      }
      return some;
    };
    const auto expected = testing::plain_step(layers, input(), 1);
    auto inner = part(0, 2);
    inner->push_back(Inner(part(2, 4), options_of({1, 1}, 2, mode)));
    inner->push_back(*std::next(layers->begin(), 4));
    Sequential outer(Inner(inner, options_of({1, 1, 1, 1}, 2, mode)));
    outer->push_back(*std::next(layers->begin(), 5));
    GPipe pipeline(outer, options_of({1, 1}, 2, mode));
    for (int k = 0; k < 5; ++k) {
      EXPECT_LE(distance(step(pipeline, input()), expected), 1e-12);
    }
  }
}

// Such a call would wait for itself.
TEST(Nested, ItsOwnPipelineInALayerIsRefused) {
  GPipe pipeline = nullptr;
  bool again = true;
  Sequential model(
      layer([&](Tensor x) { return again ? pipeline->forward(x) : x * 2; }),
      layer([](Tensor x) { return x * 3; }));
  pipeline = GPipe(model, options_of({1, 1}, 2, Checkpoint::kAlways));
  const Tensor x = torch::ones({4}).to(device());
  EXPECT_THAT(
      error_of([&] { pipeline->forward(x); }),
      HasSubstr("c10::Error: a layer or the loss calls the pipeline that it is "
                "part of, which would be a deadlock; call it between steps, "
                "or make a second pipeline of a clone() of the layers to be "
                "called (in partition 0, micro-batch 0"));
  again = false;
  EXPECT_TRUE(torch::equal(pipeline->forward(x).cpu(), x.cpu() * 6));
}

// The pipeline between the two has its own workers. The layer that calls the
// outermost pipeline runs on these.
TEST(Nested, AnOuterPipelineInALayerOfAnInnerOneIsRefused) {
  GPipe outer = nullptr;
  bool again = true;
  Sequential inner(layer([](Tensor x) { return x + 1; }), layer([&](Tensor x) {
                     return again ? outer->forward(x) : x * 2;
                   }));
  Sequential middle(Inner(inner, options_of({1, 1}, 2, Checkpoint::kAlways)));
  outer =
      GPipe(Sequential(Inner(middle, options_of({1}, 1, Checkpoint::kAlways)),
                       layer([](Tensor x) { return x * 3; })),
            options_of({1, 1}, 2, Checkpoint::kAlways));
  const Tensor x = torch::ones({4}).to(device());
  EXPECT_THAT(error_of([&] { outer->forward(x); }),
              HasSubstr("c10::Error: a layer or the loss calls the pipeline "
                        "that it is part of"));
  again = false;
  EXPECT_TRUE(torch::equal(outer->forward(x).cpu(), x.cpu() * 12));
}

// --- Lifetime ----------------------------------------------------------------

// The call completes as usual, and the workers end after it.
TEST(Life, AForwardMayOutliveTheLastHandle) {
  std::promise<void> entered, gone;
  std::atomic<bool> first{true};
  GPipe pipeline(
      Sequential(layer([](Tensor x) { return x + 1; }), layer([&](Tensor x) {
                   if (first.exchange(false)) {
                     entered.set_value();
                     gone.get_future().wait();
                   }
                   return x * 2;
                 })),
      options_of({1, 1}, 2, Checkpoint::kNever));
  const Tensor x = torch::arange(4.0).to(device()).requires_grad_();
  auto* const raw = pipeline.get();
  Tensor output;
  std::thread caller([&] { output = raw->forward(x); });
  entered.get_future().wait();
  pipeline = nullptr;
  gone.set_value();
  caller.join();
  EXPECT_TRUE(torch::equal(output.cpu(), (x.cpu() + 1) * 2));
  output.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full_like(x, 2)));
}

// --- Modes -------------------------------------------------------------------

// A model that ends with a layer whose type autocast lowers on all devices.
Sequential float_model() {
  auto model = linear_model(0);
  model->push_back(torch::nn::Linear(3, 3));
  model->to(torch::kFloat);
  return model;
}

// The plain model runs on the pipeline's first device, since autocast is set
// per device type. It runs in the same micro-batches, since kernels for other
// sizes may round differently.
TEST(Autocast, ReachesTheLayersInForwardAndRecompute) {
  const Tensor x = torch::randn({8, 6});
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const Checkpoint mode : kModes) {
      auto model = float_model();
      const auto run = [&](const std::function<Tensor(Tensor)>& forward) {
        return training_step(
            *model,
            [&](Tensor input) {
              const AutocastScope autocast(device().type(), dtype);
              return forward(input);
            },
            x);
      };
      model->to(device());
      const auto plain = run([&](Tensor input) {
        const auto halves = input.chunk(2);
        return torch::cat(
            {model->forward(halves[0]), model->forward(halves[1])});
      });
      GPipe pipeline(model, options_of({1, 2, 4}, 2, mode));
      const auto actual =
          run([&](Tensor input) { return pipeline->forward(input); });
      EXPECT_EQ(plain.output.scalar_type(), dtype);
      EXPECT_EQ(actual.output.scalar_type(), dtype);
      EXPECT_TRUE(torch::equal(actual.output, plain.output));
      // Low-precision sums depend on their order.
      ASSERT_EQ(actual.grads.size(), plain.grads.size());
      for (std::size_t k = 0; k < plain.grads.size(); ++k) {
        const Tensor &mine = actual.grads[k], &theirs = plain.grads[k];
        EXPECT_GT(theirs.norm().item<double>(), 0) << k;
        EXPECT_LE((mine - theirs).norm().item<double>(),
                  0.05 * theirs.norm().item<double>())
            << k;
      }
    }
  }
}

// LibTorch caches the cast weights for all threads until the autocast scope
// ends. A recompute runs after the scope.
TEST(Autocast, HasTheWeightsOfEachStep) {
  const Tensor x = torch::randn({8, 6}).to(device());
  const auto outputs = [&](Checkpoint mode) {
    torch::manual_seed(3);
    GPipe pipeline(float_model(), options_of({1, 2, 4}, 2, mode));
    std::vector<Tensor> each;
    for (int step = 0; step < 3; ++step) {
      Tensor output;
      {
        const AutocastScope autocast(device().type(), at::kBFloat16);
        output = pipeline->forward(x);
      }
      each.push_back(output.detach());
      output.sum().backward();
      const torch::NoGradGuard no_grad;
      for (Tensor parameter : pipeline->parameters()) parameter.mul_(1.5);
    }
    return each;
  };
  const auto expected = outputs(Checkpoint::kNever);
  const auto actual = outputs(Checkpoint::kAlways);
  for (std::size_t step = 0; step < expected.size(); ++step) {
    EXPECT_TRUE(torch::equal(actual[step], expected[step])) << step;
  }
  EXPECT_FALSE(torch::equal(expected[0], expected[1]));
}

// Two workers run, each with its own graph.
TEST(Autocast, OfALayerThatTwoPartitionsHaveEqualsThatOfOne) {
  struct Uses : torch::nn::Module {
    explicit Uses(torch::nn::Linear linear)
        : linear(register_module("linear", linear)) {}
    Tensor forward(const Tensor& x) { return linear(x).to(at::kFloat); }
    torch::nn::Linear linear;
  };
  torch::manual_seed(4);
  const torch::nn::Linear shared(4, 4);
  const Sequential model(std::make_shared<Uses>(shared),
                         std::make_shared<Uses>(shared));
  const Tensor x = torch::randn({16, 4}).to(device());
  const auto grads = [&](std::vector<int64_t> balance) {
    GPipe pipeline(model,
                   options_of(balance, 8, Checkpoint::kNever)
                       .devices(std::vector<torch::Device>(2, device())));
    Tensor output;
    {
      const AutocastScope autocast(device().type(), at::kBFloat16);
      output = pipeline->forward(x);
    }
    return torch::autograd::grad({output.sum()}, shared->parameters());
  };
  const auto expected = grads({2});
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto actual = grads({1, 1});
    for (std::size_t k = 0; k < expected.size(); ++k) {
      EXPECT_LE((actual[k] - expected[k]).abs().max().item<float>(), 1e-4);
    }
  }
}

TEST(Autocast, DoesNotStayOnTheWorkers) {
  GPipe pipeline(float_model(), options_of({3, 4}, 2, Checkpoint::kNever));
  const Tensor x = torch::randn({4, 6}).to(device());
  {
    const AutocastScope autocast(device().type(), at::kBFloat16);
    EXPECT_EQ(pipeline->forward(x).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(pipeline->forward(x).scalar_type(), at::kFloat);
}

// --- Size --------------------------------------------------------------------

TEST(Deep, ChainsOfLayersAndOperatorsWork) {
  Sequential model;
  for (int k = 0; k < 100; ++k) {
    model->push_back(layer([](Tensor x) {
      for (int n = 0; n < 100; ++n) x = x + 1;
      return x;
    }));
  }
  for (const Checkpoint mode : kModes) {
    GPipe pipeline(model, options_of({30, 70}, 2, mode));
    const Tensor x = torch::zeros({2}).to(device()).requires_grad_();
    const auto output = pipeline->forward(x);
    EXPECT_TRUE(torch::equal(output.cpu(), torch::full({2}, 10000.f)));
    output.sum().backward();
    EXPECT_TRUE(torch::equal(x.grad().cpu(), torch::ones({2})));
    // A graph may be dropped without a backward.
    pipeline->forward(x);
  }
}

// A user's checkpoint function: its backward runs the forward again, and then
// the backward of that.
struct UsersCheckpoint : torch::autograd::Function<UsersCheckpoint> {
  using Function = std::function<Tensor(Tensor)>;
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor x,
                        int64_t function) {
    context->save_for_backward({x});
    context->saved_data["function"] = function;
    torch::NoGradGuard no_grad;
    return (*reinterpret_cast<Function*>(function))(x);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list grads) {
    const auto* const function =
        reinterpret_cast<Function*>(context->saved_data["function"].toInt());
    const Tensor x =
        context->get_saved_variables()[0].detach().requires_grad_();
    torch::AutoGradMode with_grad(true);
    (*function)(x).backward(grads[0]);
    return {x.grad(), Tensor()};
  }
};

// The backwards are nested deeper than the 60 levels that LibTorch's engine
// runs on the calling thread.
TEST(Deep, BackwardsInsideOfBackwardsWork) {
  std::vector<UsersCheckpoint::Function> functions(
      100, [](Tensor x) { return x * 1.01; });
  for (std::size_t k = 1; k < functions.size(); ++k) {
    functions[k] = [inner = &functions[k - 1]](Tensor x) {
      return UsersCheckpoint::apply(x * 1.01, reinterpret_cast<int64_t>(inner));
    };
  }
  Sequential model(layer([&](Tensor x) { return functions.back()(x); }),
                   layer([&](Tensor x) { return functions.back()(x); }));
  const auto expected = testing::plain_step(model, input(), 2);
  for (const Checkpoint mode : kModes) {
    GPipe pipeline(model, options_of({1, 1}, 2, mode));
    EXPECT_LE(distance(step(pipeline, input()), expected), 1e-12);
  }
}

TEST(Deep, ManyPartitionsAndMicrobatchesWork) {
  Sequential model;
  for (int k = 0; k < 32; ++k) {
    model->push_back(layer([](Tensor x) { return x + 1; }));
  }
  GPipe pipeline(
      model, options_of(std::vector<int64_t>(32, 1), 64, Checkpoint::kAlways));
  const Tensor x = torch::zeros({64}).to(device()).requires_grad_();
  const auto output = pipeline->forward(x);
  output.sum().backward();
  EXPECT_TRUE(torch::equal(output.cpu(), torch::full({64}, 32.f)));
  EXPECT_TRUE(torch::equal(x.grad().cpu(), torch::ones({64})));
}

}  // namespace
}  // namespace gpipe
