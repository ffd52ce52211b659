// Tests checkpointed cells: what layers can query, when cells are recomputed,
// and which changes are not allowed between forward and backward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using testing::device;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kModes;
using testing::layer;
using testing::ones;
using testing::options;
using ::testing::StartsWith;
using torch::Tensor;

// The events on one partition, in order: "F0" is a forward of micro-batch 0
// that keeps its graph, "C0" a forward that does not, "R0" a recompute, "B0" a
// backward.
struct Log {
  std::mutex mutex;
  std::vector<std::string> lines;
  void add(char what) {
    std::lock_guard<std::mutex> lock(mutex);
    lines.push_back(what + std::to_string(current_microbatch().value_or(-1)));
  }
};

torch::nn::AnyModule logging(Log& log) {
  return layer([&log](Tensor x) {
    EXPECT_FALSE(is_checkpointing() && is_recomputing());
    log.add(is_checkpointing() ? 'C' : is_recomputing() ? 'R' : 'F');
    return testing::on_backward(x, [&log](Tensor grad) {
      log.add('B');
      return grad;
    });
  });
}

// Returns the logs of all partitions after a step.
std::vector<std::vector<std::string>> logs(Checkpoint mode, int64_t partitions,
                                           int64_t rows, int64_t chunks) {
  std::vector<Log> logs(partitions);
  torch::nn::Sequential model;
  for (Log& log : logs) model->push_back(logging(log));
  GPipe pipeline(model,
                 options(std::vector<int64_t>(partitions, 1), chunks, mode));
  pipeline->forward(ones({rows}).requires_grad_()).sum().backward();
  std::vector<std::vector<std::string>> lines;
  for (Log& log : logs) lines.push_back(log.lines);
  return lines;
}

TEST(Checkpoint, AlwaysRecomputesEachRightBeforeItsBackward) {
  for (const auto& lines : logs(Checkpoint::kAlways, 3, 4, 4)) {
    EXPECT_THAT(lines, ElementsAre("C0", "C1", "C2", "C3", "R3", "B3", "R2",
                                   "B2", "R1", "B1", "R0", "B0"));
  }
}

TEST(Checkpoint, ExceptLastKeepsTheLast) {
  for (const auto& lines : logs(Checkpoint::kExceptLast, 3, 3, 3)) {
    EXPECT_THAT(lines,
                ElementsAre("C0", "C1", "F2", "B2", "R1", "B1", "R0", "B0"));
  }
}

TEST(Checkpoint, NeverKeepsAll) {
  for (const auto& lines : logs(Checkpoint::kNever, 3, 3, 3)) {
    EXPECT_THAT(lines, ElementsAre("F0", "F1", "F2", "B2", "B1", "B0"));
  }
}

// torchgpipe counts chunks instead, so it also checkpoints the last
// micro-batch.
TEST(Checkpoint, ExceptLastCountsTheActualMicrobatches) {
  for (const auto& lines : logs(Checkpoint::kExceptLast, 2, 2, 4)) {
    EXPECT_THAT(lines, ElementsAre("C0", "F1", "B1", "R0", "B0"));
  }
  EXPECT_THAT(logs(Checkpoint::kExceptLast, 1, 1, 4)[0],
              ElementsAre("F0", "B0"));
  EXPECT_THAT(logs(Checkpoint::kExceptLast, 1, 5, 4)[0],
              ElementsAre("C0", "C1", "F2", "B2", "R1", "B1", "R0", "B0"));
}

TEST(Checkpoint, FlagsAreOffOutsideOfAPipeline) {
  EXPECT_FALSE(is_checkpointing());
  EXPECT_FALSE(is_recomputing());
  EXPECT_EQ(current_microbatch(), std::nullopt);
  logs(Checkpoint::kAlways, 2, 4, 2);
  EXPECT_FALSE(is_checkpointing());
  EXPECT_FALSE(is_recomputing());
  EXPECT_EQ(current_microbatch(), std::nullopt);
}

// torchgpipe's test_not_requires_grad: parameters get their gradients even if
// the input does not require grad.
TEST(Checkpoint, RecomputesThoughTheInputDoesNotRequireGrad) {
  torch::nn::Linear linear(3, 3);
  GPipe pipeline(torch::nn::Sequential(linear),
                 options({1}, 2, Checkpoint::kAlways));
  const auto output = pipeline->forward(ones({4, 3}));
  EXPECT_TRUE(output.requires_grad());
  output.sum().backward();
  EXPECT_TRUE(torch::equal(linear->bias.grad().cpu(), torch::full({3}, 4.f)));
}

// Counts live graphs. Multiplies by ones that are freed when the graph that
// saved them is freed.
struct LiveGraphs {
  std::atomic<int> now{0}, most{0};
  torch::nn::AnyModule make() {
    return layer([this](Tensor x) {
      const int live = ++now;
      int seen = most;
      while (live > seen && !most.compare_exchange_weak(seen, live)) {
      }
      const Tensor memory = torch::ones_like(x);
      const auto factor = at::from_blob(
          memory.data_ptr(), memory.sizes(), [this, memory](void*) { --now; },
          memory.options(), memory.device());
      return x * factor;
    });
  }
};

int most_live_graphs(Checkpoint mode, bool retain) {
  std::vector<LiveGraphs> live(3);
  torch::nn::Sequential model;
  for (auto& each : live) model->push_back(each.make());
  GPipe pipeline(model, options({1, 1, 1}, 5, mode));
  auto loss = pipeline->forward(ones({5}).requires_grad_()).sum();
  if (retain) loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  int most = 0;
  for (auto& each : live) {
    EXPECT_EQ(each.now, 0);
    most = std::max<int>(most, each.most);
  }
  return most;
}

TEST(Checkpoint, KeepsOneGraphPerPartitionAtMost) {
  EXPECT_EQ(most_live_graphs(Checkpoint::kAlways, false), 1);
  EXPECT_EQ(most_live_graphs(Checkpoint::kAlways, true), 1);
  // The graph of the last micro-batch is kept. It is used, and without
  // retain_graph freed, before the others are recomputed.
  EXPECT_EQ(most_live_graphs(Checkpoint::kExceptLast, false), 1);
  EXPECT_EQ(most_live_graphs(Checkpoint::kExceptLast, true), 2);
  EXPECT_EQ(most_live_graphs(Checkpoint::kNever, false), 5);
}

// --- Buffers -----------------------------------------------------------------

TEST(Buffers, OfBatchNormChangeOncePerMicrobatch) {
  torch::set_num_threads(1);
  torch::manual_seed(0);
  const Tensor input = torch::randn({8, 3, 8, 8}, torch::kDouble);
  for (const Checkpoint mode : kModes) {
    for (const int64_t chunks : {1, 2, 4}) {
      torch::manual_seed(1);
      auto plain = testing::conv_model();
      torch::manual_seed(1);
      auto model = testing::conv_model();
      GPipe pipeline(model,
                     options({3, 5}, chunks, mode).threads_per_partition(1));
      for (int step = 1; step <= 2; ++step) {
        const auto expected = testing::plain_step(plain, input, chunks);
        const auto actual = testing::training_step(pipeline, input);
        EXPECT_EQ(testing::difference(actual, expected), "");
        EXPECT_EQ(
            pipeline->named_buffers()["1.num_batches_tracked"].item<int64_t>(),
            step * chunks);
      }
    }
  }
}

// Counts its calls in a buffer that affects its output.
struct CounterImpl : torch::nn::Module {
  CounterImpl()
      : count(register_buffer("count", torch::zeros({}, torch::kDouble))),
        weight(register_parameter("weight", torch::ones({3}, torch::kDouble))) {
  }
  Tensor forward(Tensor x) {
    {
      torch::NoGradGuard no_grad;
      count.add_(1);
    }
    return (x * weight).sin() * count.clone();
  }
  Tensor count, weight;
};
TORCH_MODULE(Counter);

TEST(Buffers, OfOtherLayersAreThoseOfTheForwardInTheRecompute) {
  torch::set_num_threads(1);
  torch::manual_seed(0);
  const Tensor input = torch::randn({6, 3}, torch::kDouble);
  torch::nn::Sequential plain{Counter(), Counter()};
  const auto expected = testing::plain_step(plain, input, 3);
  for (const Checkpoint mode : kModes) {
    GPipe pipeline(torch::nn::Sequential(Counter(), Counter()),
                   options({1, 1}, 3, mode).threads_per_partition(1));
    const auto actual = testing::training_step(pipeline, input);
    EXPECT_EQ(testing::difference(actual, expected), "");
    EXPECT_EQ(pipeline->buffers()[0].item<double>(), 3);
  }
}

// Counts only the last of three micro-batches, in a buffer that affects the
// output of each.
struct LastOnlyImpl : torch::nn::Module {
  LastOnlyImpl()
      : count(register_buffer("count", torch::zeros({}, torch::kDouble))),
        weight(register_parameter("weight", torch::ones({3}, torch::kDouble))) {
  }
  Tensor forward(Tensor x) {
    if (current_microbatch() == 2) {
      torch::NoGradGuard no_grad;
      count.add_(1);
    }
    return (x * weight).sin() * (count + 2);
  }
  Tensor count, weight;
};
TORCH_MODULE(LastOnly);

// Another micro-batch or the user may change buffers after the forward. In a
// plain model, operators save what they need for the backward.
TEST(Buffers, AreThoseOfTheForwardInTheRecomputeWhoeverChangesThem) {
  const Tensor input =
      torch::linspace(-1, 1, 9, torch::kDouble).reshape({3, 3});
  std::vector<Tensor> grads;
  for (const Checkpoint mode : kModes) {
    LastOnly model;
    GPipe pipeline(torch::nn::Sequential(model), options({1}, 3, mode));
    const Tensor x = input.clone().to(device()).requires_grad_();
    auto loss = pipeline->forward(x).pow(2).sum();
    {
      torch::NoGradGuard no_grad;
      model->count.add_(5);
    }
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_EQ(model->count.item<double>(), 6);
    grads.push_back(x.grad().cpu());
    pipeline->forward(x);  // the forward of another step
    x.mutable_grad() = Tensor();
    loss.backward();
    EXPECT_EQ(model->count.item<double>(), 7);
    grads.push_back(x.grad().cpu());
  }
  const Tensor x = input.clone().requires_grad_();
  auto y = x.sin() * torch::tensor({2., 2., 3.}, torch::kDouble).unsqueeze(1);
  y.pow(2).sum().backward();
  for (const Tensor& grad : grads) {
    EXPECT_TRUE(torch::allclose(grad, x.grad(), 1e-12, 1e-12));
  }
}

// --- Changes between forward and backward ------------------------------------

struct Pending {
  Pending()
      : linear(3, 3),
        pipeline(torch::nn::Sequential(linear, torch::nn::Dropout(0.5)),
                 options({1, 1}, 2, Checkpoint::kAlways)),
        x(ones({4, 3})),
        loss(pipeline->forward(x).sum()) {}
  std::string backward_error() {
    return error_of([&] { loss.backward(); });
  }
  torch::nn::Linear linear;
  GPipe pipeline;
  Tensor x, loss;
};

TEST(Change, OfAParameterIsDetected) {
  Pending step;
  {
    torch::NoGradGuard no_grad;
    step.linear->weight.add_(1);
  }
  const auto error = step.backward_error();
  EXPECT_THAT(error, StartsWith("c10::Error: parameter '0.weight' ([3, 3] "
                                "Float) of partition 0 has been changed in "
                                "place between forward and backward; the "
                                "forward cannot be computed again with it"));
  EXPECT_THAT(error, HasSubstr("(in partition 0, micro-batch 1, recompute)"));
  // The next step is not affected.
  step.pipeline->forward(step.x).sum().backward();
}

TEST(Change, OfAFrozenParameterIsDetected) {
  torch::nn::Linear first(3, 3), second(3, 3);
  for (Tensor& each : second->parameters()) each.requires_grad_(false);
  GPipe pipeline(torch::nn::Sequential(first, second),
                 options({2}, 2, Checkpoint::kAlways));
  auto loss = pipeline->forward(ones({4, 3})).sum();
  {
    torch::NoGradGuard no_grad;
    second->weight.mul_(2);
  }
  EXPECT_EQ(error_of([&] { loss.backward(); }),
            "c10::Error: parameter '1.weight' ([3, 3] Float) of partition 0 "
            "has been changed in place between forward and backward; the "
            "forward cannot be computed again with it. Call backward first, or "
            "forward again; a tensor that the forward changes itself must be a "
            "buffer (in partition 0, micro-batch 1, recompute)");
  // The next step is not affected, and another parameter may be frozen in it.
  second->weight.requires_grad_();
  loss = pipeline->forward(ones({4, 3})).sum();
  second->weight.requires_grad_(false);
  loss.backward();
}

// Counts its calls in a frozen parameter.
struct FrozenCounterImpl : torch::nn::Module {
  Tensor forward(Tensor x) {
    {
      torch::NoGradGuard no_grad;
      count.add_(1);
    }
    return x * count;
  }
  Tensor count = register_parameter("count", torch::zeros({}), false);
};
TORCH_MODULE(FrozenCounter);

TEST(Change, OfAFrozenParameterByItsLayerIsDetected) {
  GPipe pipeline(torch::nn::Sequential(FrozenCounter()),
                 options({1}, 1, Checkpoint::kAlways));
  auto loss = pipeline->forward(ones({4}).requires_grad_()).sum();
  EXPECT_THAT(error_of([&] { loss.backward(); }),
              StartsWith("c10::Error: parameter '0.count' ([] "));
}

TEST(Change, OfTheModeIsDetected) {
  for (const bool whole : {true, false}) {
    Pending step;
    whole ? step.pipeline->eval() : (*step.pipeline)[1]->eval();
    EXPECT_THAT(step.backward_error(),
                StartsWith("c10::Error: train() or eval() was called between "
                           "forward and backward; partition "));
  }
}

struct BlockImpl : torch::nn::Module {
  Tensor forward(Tensor x) { return dropout(x); }
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout());
};
TORCH_MODULE(Block);

TEST(Change, OfTheModeOfAMemberIsDetected) {
  Block block;
  GPipe pipeline(torch::nn::Sequential(block),
                 options({1}, 2, Checkpoint::kAlways));
  auto loss = pipeline->forward(ones({4, 3}).requires_grad_()).sum();
  block->dropout->eval();
  EXPECT_THAT(error_of([&] { loss.backward(); }),
              StartsWith("c10::Error: train() or eval() was called between "
                         "forward and backward"));
}

struct DropOnceImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const Tensor y = dropout(linear(x));
    dropout->eval();
    return dropout(y);
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(3, 3));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout());
};
TORCH_MODULE(DropOnce);

TEST(Change, OfTheModeByTheForwardItselfIsMadeAgain) {
  const auto grad = [](Checkpoint mode) {
    torch::manual_seed(2);
    DropOnce layer;
    GPipe pipeline(torch::nn::Sequential(layer), options({1}, 2, mode));
    pipeline->forward(ones({4, 3})).pow(2).sum().backward();
    EXPECT_FALSE(layer->dropout->is_training());
    return layer->linear->weight.grad();
  };
  const Tensor expected = grad(Checkpoint::kNever);
  EXPECT_GT(expected.abs().sum().item<double>(), 0);
  EXPECT_TRUE(grad(Checkpoint::kAlways).equal(expected));
  EXPECT_TRUE(grad(Checkpoint::kExceptLast).equal(expected));
}

// As of a member that was there when the pipeline was made.
TEST(Change, OfAMemberThatHasReplacedAnotherIsDetected) {
  Block block;
  GPipe pipeline(torch::nn::Sequential(block),
                 options({1}, 2, Checkpoint::kAlways));
  const auto replace = [&] {
    block->dropout = block->replace_module("dropout", torch::nn::Dropout());
  };
  const auto forward = [&] {
    return pipeline->forward(ones({4, 3}).requires_grad_()).sum();
  };
  replace();
  auto loss = forward();
  block->dropout->eval();
  EXPECT_THAT(error_of([&] { loss.backward(); }),
              StartsWith("c10::Error: train() or eval() was called between "
                         "forward and backward"));
  loss = forward();
  replace();
  EXPECT_THAT(error_of([&] { loss.backward(); }),
              StartsWith("c10::Error: a module of partition 0 was replaced "
                         "between forward and backward"));
  forward().backward();
}

// Makes its member in its first forward.
struct LateImpl : torch::nn::Module {
  Tensor forward(Tensor x) {
    if (!linear) linear = register_module("linear", torch::nn::Linear(3, 3));
    return linear(x);
  }
  torch::nn::Linear linear = nullptr;
};
TORCH_MODULE(Late);

TEST(Change, ALayerMayMakeAMemberInItsFirstForward) {
  GPipe pipeline(torch::nn::Sequential(Late()),
                 options({1}, 1, Checkpoint::kAlways)
                     .devices({torch::Device(torch::kCPU)}));
  for (int step = 0; step < 2; ++step) {
    const Tensor x = torch::ones({4, 3}).requires_grad_();
    pipeline->forward(x).sum().backward();
    EXPECT_TRUE(x.grad().defined());
  }
}

TEST(Change, OfTheInputIsDetected) {
  Pending step;
  step.x.add_(1);
  EXPECT_THAT(step.backward_error(),
              StartsWith("c10::Error: input 0 of partition 0 has been changed "
                         "in place between forward and backward"));
}

// torch::optim::SGD writes without a new version.
TEST(Change, ByAnOptimizerIsDetectedOnTheCpu) {
  if (!device().is_cpu())
    GTEST_SKIP() << "values are not read from " << device();
  torch::manual_seed(0);
  for (const Checkpoint mode : kModes) {
    torch::nn::Sequential model(torch::nn::Linear(3, 3),
                                torch::nn::Linear(3, 1));
    GPipe pipeline(model, options({1, 1}, 2, mode));
    torch::optim::SGD optimizer(pipeline->parameters(), 0.1);
    const Tensor x = ones({4, 3});
    pipeline->forward(x).sum().backward();
    auto loss = pipeline->forward(x).sum();
    optimizer.step();
    EXPECT_THAT(
        error_of([&] { loss.backward(); }),
        AllOf(StartsWith("c10::Error: parameter '0."),
              HasSubstr("' has been changed between forward and backward, as "
                        "by the step() of an optimizer. Call step() after "
                        "backward(), or forward() again")));
    // The next step is not affected.
    pipeline->forward(x).sum().backward();
    // Also of a frozen parameter, which is no leaf of the graph.
    const Tensor frozen = model->parameters()[2];
    frozen.set_requires_grad(false);
    loss = pipeline->forward(x).sum();
    frozen.data().mul_(2);
    EXPECT_THAT(error_of([&] { loss.backward(); }),
                StartsWith("c10::Error: parameter '1.weight' has been changed "
                           "between forward and backward"));
  }
}

TEST(Change, WithoutCheckpointingIsLibTorchsBusiness) {
  torch::nn::Sequential model(torch::nn::Linear(3, 3), torch::nn::Dropout(0.5));
  GPipe pipeline(model, options({1, 1}, 2, Checkpoint::kNever));
  auto loss = pipeline->forward(ones({4, 3})).sum();
  pipeline->eval();
  loss.backward();
  pipeline->train();
  const Tensor x = ones({4, 3}).requires_grad_();
  loss = pipeline->forward(x).sum();
  {
    torch::NoGradGuard no_grad;
    model->parameters()[0].add_(1);
  }
  const auto changed = HasSubstr("has been modified by an inplace operation");
  EXPECT_THAT(error_of([&] { loss.backward(); }),
              AllOf(changed, HasSubstr("parameter '0.weight' has been changed "
                                       "between forward and backward")));
  const Tensor input = ones({4, 3});
  loss = pipeline->forward(input).sum();
  input.add_(1);
  EXPECT_THAT(error_of([&] { loss.backward(); }), changed);
}

TEST(Recompute, ThatGivesSomethingElseIsDetected) {
  using Tensors = std::vector<Tensor>;
  const auto error = [](auto last) {
    GPipe pipeline(
        torch::nn::Sequential(
            layer<Tensors>([last](Tensor x) {
              return is_recomputing() ? last(x) : Tensors{x * 2};
            }),
            layer<Tensor, Tensors>([](Tensors all) { return all[0] * 1; })),
        options({1, 1}, 2, Checkpoint::kAlways));
    return error_of([&] {
      pipeline->forward(ones({4, 3}).requires_grad_()).sum().backward();
    });
  };
  EXPECT_EQ(error([](Tensor x) { return Tensors{x * 2}; }), "");
  const auto detected = HasSubstr("partition 0 must do the same in both calls");
  EXPECT_THAT(error([](Tensor) { return Tensors(); }), detected);
  EXPECT_THAT(error([](Tensor x) { return Tensors{x, x}; }), detected);
  EXPECT_THAT(error([](Tensor) { return Tensors(1); }), detected);
  EXPECT_THAT(error([](Tensor x) { return Tensors{x.sum(1, true)}; }),
              detected);
  EXPECT_THAT(error([](Tensor x) { return Tensors{x.to(torch::kDouble)}; }),
              detected);
  EXPECT_THAT(error([](Tensor x) { return Tensors{x.detach()}; }), detected);
}

// torchgpipe's test_parallel_randoms: the zeros of the output equal those of
// the gradient, even if partitions draw at the same time.
TEST(Dropout, IsReplayedExactly) {
  torch::manual_seed(0);
  for (int round = 0; round < 5; ++round) {
    torch::nn::Sequential model;
    for (int k = 0; k < 200; ++k) model->push_back(torch::nn::Dropout(0.001));
    GPipe pipeline(model, options({100, 100}, 10, Checkpoint::kAlways));
    const Tensor x = ones({10, 10}).requires_grad_();
    const auto output = pipeline->forward(x);
    output.sum().backward();
    EXPECT_TRUE(torch::equal(output.cpu() == 0, x.grad().cpu() == 0));
    const auto zeros = (output == 0).sum().item<int64_t>();
    EXPECT_GT(zeros, 0);
    EXPECT_LT(zeros, 100);
  }
}

}  // namespace
}  // namespace gpipe
