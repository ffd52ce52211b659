// Tests recomputed layers, and checkpoint() in layers, in pipelines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/gpipe.h"
#include "gpipe/recomputed.h"
#include "gpipe/schedule.h"
#include "gpipe/skip.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::device;
using testing::devices;
using testing::error_of;
using testing::kModes;
using testing::layer;
using testing::mean_square;
using torch::Tensor;
using torch::nn::Sequential;
namespace F = torch::nn::functional;

// What each layer of the test's model does with recompute.
enum class Recompute { kNone, kLayers, kInside, kNested };

// A layer with dropout, BatchNorm, and a weight that it uses twice. It calls
// checkpoint() itself for kInside and kNested.
struct BlockImpl : torch::nn::Module {
  BlockImpl(Recompute recompute, std::shared_ptr<std::atomic<int>> calls)
      : recompute(recompute), calls(std::move(calls)) {
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    linear = register_module("linear", torch::nn::Linear(6, 6));
  }
  Tensor forward(Tensor x) {
    if (recompute != Recompute::kInside && recompute != Recompute::kNested) {
      return work(x);
    }
    return checkpoint([this](Tensor h) { return work(h); }, x);
  }
  Tensor work(const Tensor& x) {
    ++*calls;
    const Tensor h = norm(linear(x)).tanh();
    const auto drop = [this](Tensor z) {
      return F::dropout(linear(z), F::DropoutFuncOptions().p(0.25)).sin();
    };
    return x +
           (recompute == Recompute::kNested ? checkpoint(drop, h) : drop(h));
  }
  Recompute recompute;
  std::shared_ptr<std::atomic<int>> calls;
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Block);

struct StashImpl : torch::nn::Module, Skippable {
  StashImpl() : Skippable({{"skip"}, {}}) {}
  Tensor forward(Tensor x) {
    const Tensor y = x.sin().exp();
    stash("skip", y);
    return y.cos() * weight;
  }
  Tensor weight = register_parameter("weight", torch::linspace(0.5, 1.5, 6));
};
TORCH_MODULE(Stash);

struct PopImpl : torch::nn::Module, Skippable {
  PopImpl() : Skippable({{}, {"skip"}}) {}
  Tensor forward(Tensor x) { return (x * *pop("skip")).tanh(); }
};
TORCH_MODULE(Pop);

template <typename Layer>
void add(Sequential& model, Recompute recompute, const Layer& layer) {
  if (recompute == Recompute::kLayers || recompute == Recompute::kNested) {
    model->push_back(Recomputed(layer));
  } else {
    model->push_back(layer);
  }
}

// Returns 8 layers in double precision for inputs [n, 6]. `calls` counts the
// calls of 6 blocks.
Sequential make(Recompute recompute, std::shared_ptr<std::atomic<int>> calls) {
  torch::manual_seed(1);
  Sequential model;
  add(model, recompute, Stash());
  for (int k = 0; k < 3; ++k) add(model, recompute, Block(recompute, calls));
  add(model, recompute, Pop());
  for (int k = 0; k < 3; ++k) add(model, recompute, Block(recompute, calls));
  model->to(torch::kDouble);
  return model;
}

struct Results {
  std::vector<Tensor> tensors;  // loss or output, gradients, buffers
  std::vector<std::string> names;
  int calls = 0;
};

Results result_of(GPipe& pipeline, const Tensor& output,
                  const std::atomic<int>& calls) {
  Results run;
  run.calls = calls;
  run.tensors.push_back(output.detach().cpu());
  for (const auto& each : pipeline->named_parameters()) {
    run.names.push_back(each.key());
    run.tensors.push_back(each.value().grad().cpu());
  }
  for (const Tensor& each : pipeline->buffers()) {
    run.tensors.push_back(each.cpu().clone());
  }
  return run;
}

void expect_same(const Results& expected, const Results& got) {
  EXPECT_EQ(expected.names, got.names);
  EXPECT_EQ(testing::difference(expected.tensors, got.tensors), "");
}

Tensor input() {
  torch::manual_seed(2);
  return torch::randn({12, 6}, torch::kDouble);
}

// Returns a step of train_step() with 2 ranks and 4 micro-batches.
Results train(Recompute recompute, const std::string& name, Checkpoint mode,
              bool deferred) {
  const int stages_per_rank = fixed_stages_per_rank(name).value_or(2);
  const Schedule schedule = named_schedule(name, 2, 4, stages_per_rank);
  const auto calls = std::make_shared<std::atomic<int>>(0);
  GPipe pipeline(
      make(recompute, calls),
      testing::options_for(schedule, 8, mode).deferred_batch_norm(deferred));
  torch::manual_seed(3);
  const auto result = pipeline->train_step(
      input().to(pipeline->devices().front()),
      torch::zeros({12, 6}, torch::kDouble), mean_square, schedule);
  return result_of(pipeline, result.loss, *calls);
}

TEST(Recompute, HasTheBitsOfThePlainModelWithEverySchedule) {
  bool deferred = false;
  for (const std::string& name : schedule_names()) {
    if (name == "forward-only") continue;
    for (const Checkpoint mode : kModes) {
      deferred = !deferred;  // each schedule runs with both
      SCOPED_TRACE(name + " " + to_string(mode) +
                   (deferred ? " deferred" : ""));
      const Results plain = train(Recompute::kNone, name, mode, deferred);
      // 6 blocks, 4 micro-batches.
      const int recomputed = mode == Checkpoint::kNever        ? 0
                             : mode == Checkpoint::kExceptLast ? 3
                                                               : 4;
      EXPECT_EQ(plain.calls, 6 * (4 + recomputed));
      for (const Recompute each : {Recompute::kLayers, Recompute::kInside}) {
        const Results got = train(each, name, mode, deferred);
        expect_same(plain, got);
        // The first calls are those of the plain model. Each graph that is
        // used needs one more.
        EXPECT_EQ(got.calls, plain.calls + 6 * 4);
      }
      expect_same(plain, train(Recompute::kNested, name, mode, deferred));
    }
  }
}

TEST(Recompute, HasTheBitsOfThePlainModelInForwardAndBackward) {
  for (const Checkpoint mode : kModes) {
    SCOPED_TRACE(to_string(mode));
    std::vector<Results> runs;
    for (const Recompute each : {Recompute::kNone, Recompute::kLayers,
                                 Recompute::kInside, Recompute::kNested}) {
      const auto calls = std::make_shared<std::atomic<int>>(0);
      GPipe pipeline(
          make(each, calls),
          testing::options({3, 5}, 4, mode).threads_per_partition(1));
      torch::manual_seed(3);
      const Tensor x = input().to(pipeline->devices().front()).requires_grad_();
      const Tensor output = pipeline->forward(x);
      // Other draws between forward and backward must not matter.
      torch::rand({3});
      // Twice, since the graph can be kept.
      output.pow(2).sum().backward({}, /*keep_graph=*/true);
      output.sum().backward();
      Results run = result_of(pipeline, output, *calls);
      run.tensors.push_back(x.grad().cpu());
      runs.push_back(std::move(run));
      expect_same(runs.front(), runs.back());
    }
  }
}

TEST(Recompute, OfChosenCellsHasTheBitsOfThePlainSchedule) {
  const Schedule plain = zero_bubble_h1(2, 4);
  const Schedule chosen = with_recompute(
      plain, [](int stage, int microbatch) { return stage == microbatch % 2; });
  std::vector<Results> runs;
  for (const Schedule& schedule : {plain, chosen}) {
    const auto calls = std::make_shared<std::atomic<int>>(0);
    GPipe pipeline(make(Recompute::kLayers, calls),
                   testing::options({4, 4}, 4, Checkpoint::kNever)
                       .threads_per_partition(1));
    torch::manual_seed(3);
    const auto result = pipeline->train_step(
        input().to(pipeline->devices().front()),
        torch::zeros({12, 6}, torch::kDouble), mean_square, schedule);
    runs.push_back(result_of(pipeline, result.loss, *calls));
  }
  expect_same(runs[0], runs[1]);
  // 3 blocks per stage; half of the 8 cells are recomputed.
  EXPECT_EQ(runs[1].calls, runs[0].calls + 3 * 4);
}

TEST(Recompute, TellsTheLayerWhereItFails) {
  for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    std::atomic<int> calls = 0;
    Sequential model;
    model->push_back("first", torch::nn::Linear(4, 4));
    model->push_back("second", layer([&](Tensor x) {
                       return checkpoint(
                           [&](Tensor h) {
                             h = h.exp();
                             // Fails in the recompute inside the backward.
                             const int wanted =
                                 mode == Checkpoint::kAlways ? 4 : 3;
                             if (++calls == wanted) {
                               throw std::out_of_range("here");
                             }
                             return h.sin();
                           },
                           x);
                     }));
    GPipe pipeline(model, testing::options({1, 1}, 2, mode));
    const Tensor output = pipeline->forward(torch::ones({2, 4}).to(device()));
    EXPECT_EQ(error_of([&] { output.sum().backward(); }),
              "std::out_of_range: here");
    ASSERT_TRUE(pipeline->last_failure().has_value());
    EXPECT_EQ(pipeline->last_failure()->partition, 1);
    EXPECT_EQ(pipeline->last_failure()->layer, "second");
    EXPECT_EQ(pipeline->last_failure()->phase, Phase::kBackward);
  }
}

TEST(Recompute, KnowsTheMicrobatchInEachCall) {
  std::mutex mutex;
  std::vector<std::string> log;
  Sequential model(
      torch::nn::Linear(4, 4), layer([&](Tensor x) {
        return checkpoint(
            [&](Tensor h) {
              const std::lock_guard<std::mutex> lock(mutex);
              log.push_back((is_recomputing()     ? "R"
                             : is_checkpointing() ? "C"
                                                  : "F") +
                            std::to_string(current_microbatch().value_or(-1)));
              return h.exp();
            },
            x);
      }));
  GPipe pipeline(model, testing::options({2}, 2, Checkpoint::kExceptLast));
  pipeline->forward(torch::ones({2, 4}).to(device())).sum().backward();
  // Micro-batch 0 is checkpointed: its cell is recomputed, then the function.
  EXPECT_THAT(log, ::testing::ElementsAre("C0", "C1", "R1", "R0", "R0"));
}

TEST(Recompute, RefusesCreateGraphInAPipeline) {
  GPipe pipeline(Sequential(Recomputed(torch::nn::Linear(4, 4))),
                 testing::options({1}));
  const Tensor output = pipeline->forward(torch::ones({2, 4}).to(device()));
  EXPECT_NE(error_of([&] {
              output.sum().backward({}, true, true);
            }).find("create_graph = true is not supported"),
            std::string::npos);
}

}  // namespace
}  // namespace gpipe
