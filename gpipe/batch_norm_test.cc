// Tests running estimates per mini-batch that come from micro-batches, with and
// without a pipeline.
#include "gpipe/batch_norm.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/recomputed.h"
#include "gpipe/schedule.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::device;
using testing::error_of;
using testing::kModes;
using testing::options;
using torch::Tensor;
using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm1dOptions;
using torch::nn::BatchNorm2d;
using torch::nn::Sequential;

GPipe deferred(Sequential model, const std::vector<int64_t>& balance,
               int64_t chunks, Checkpoint mode = Checkpoint::kExceptLast) {
  return GPipe(model, options(balance, chunks, mode).deferred_batch_norm(true));
}

Tensor column(int64_t rows) {
  return torch::arange(rows, torch::kDouble).reshape({rows, 1});
}

double value(const Tensor& tensor) {
  return tensor.to(torch::kDouble).item<double>();
}

// Returns a layer for one column in double precision.
BatchNorm1d norm_of_column(
    const BatchNorm1dOptions& options = BatchNorm1dOptions(1)) {
  BatchNorm1d norm(options);
  norm->to(torch::kDouble);
  return norm;
}

// Expects the running estimates after `count` mini-batches.
void expect_estimates(const BatchNorm1d& norm, double mean, double variance,
                      int64_t count) {
  EXPECT_NEAR(value(norm->running_mean), mean, 1e-12);
  EXPECT_NEAR(value(norm->running_var), variance, 1e-9);
  EXPECT_EQ(value(norm->num_batches_tracked), count);
}

void expect_no_estimates(const BatchNorm1d& norm) {
  EXPECT_EQ(value(norm->running_mean), 0);
  EXPECT_EQ(value(norm->running_var), 1);
  EXPECT_EQ(value(norm->num_batches_tracked), 0);
}

// A user's layer with members, one of them nested.
struct InnerImpl : torch::nn::Module {
  InnerImpl() { register_module("norm", norm); }
  Tensor forward(const Tensor& x) { return norm(x); }
  BatchNorm2d norm{torch::nn::BatchNorm2dOptions(3)};
};
TORCH_MODULE(Inner);
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("conv", conv);
    register_module("bn1", bn1);
    register_module("inner", inner);
  }
  Tensor forward(const Tensor& x) {
    return inner(torch::relu(bn1(conv(x)))) + x;
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 3, 3).padding(1)};
  BatchNorm2d bn1{torch::nn::BatchNorm2dOptions(3)};
  Inner inner;
};
TORCH_MODULE(Block);

TEST(DeferredBatchNorm, OfZeroToSevenInFourPieces) {
  for (const Checkpoint mode : kModes) {
    BatchNorm1d norm = norm_of_column();
    GPipe pipeline = deferred(Sequential(norm), {1}, 4, mode);
    pipeline->forward(column(8).to(device())).sum().backward();
    expect_estimates(norm, 0.35, 1.5, 1);
  }
}

// 6 rows in 4 chunks are split into 2, 2, 2: there is no fourth piece.
TEST(DeferredBatchNorm, CommitsWithFewerPiecesThanChunks) {
  BatchNorm1d norm = norm_of_column();
  GPipe pipeline = deferred(Sequential(norm), {1}, 4);
  pipeline->forward(column(6).to(device()));
  expect_estimates(norm, 0.25, 0.9 + 0.1 * 3.5, 1);
}

TEST(DeferredBatchNorm, AveragesAllMiniBatchesWithoutMomentum) {
  BatchNorm1d norm =
      norm_of_column(BatchNorm1dOptions(1).momentum(std::nullopt));
  GPipe pipeline = deferred(Sequential(norm), {1}, 2);
  pipeline->forward(column(8).to(device()));
  pipeline->forward((column(8) + 10).to(device()));
  expect_estimates(norm, (3.5 + 13.5) / 2, 6, 2);
}

// In the first layer, deferring does not change what is normalised. So the
// estimates equal those of plain LibTorch on the whole mini-batch.
TEST(DeferredBatchNorm, EqualsPlainOnTheWholeMiniBatchInEveryMode) {
  for (const Checkpoint mode : kModes) {
    for (const int64_t chunks : {1, 3, 4}) {
      torch::manual_seed(0);
      const Tensor x = torch::randn({10, 3, 5, 5}) * 3 + 1;
      BatchNorm2d plain(3), norm(3);
      GPipe pipeline =
          deferred(Sequential(norm, torch::nn::ReLU(), torch::nn::Tanh()),
                   {2, 1}, chunks, mode);
      for (int step = 0; step < 3; ++step) {
        plain(x * (step + 1));
        pipeline->forward((x * (step + 1)).to(device())).sum().backward();
      }
      EXPECT_TRUE(torch::allclose(norm->running_mean.cpu(), plain->running_mean,
                                  1e-6, 1e-6));
      EXPECT_TRUE(torch::allclose(norm->running_var.cpu(), plain->running_var,
                                  1e-6, 1e-6));
      EXPECT_EQ(value(norm->num_batches_tracked), 3);
    }
  }
}

TEST(DeferredBatchNorm, SeesTypedAndNestedMembers) {
  for (const Checkpoint mode : kModes) {
    torch::manual_seed(0);
    Block block;
    GPipe pipeline =
        deferred(Sequential(block, torch::nn::Tanh()), {1, 1}, 3, mode);
    pipeline->forward(torch::randn({9, 3, 4, 4}).to(device())).sum().backward();
    EXPECT_EQ(value(block->bn1->num_batches_tracked), 1);
    EXPECT_EQ(value(block->inner->norm->num_batches_tracked), 1);
    EXPECT_FALSE(
        torch::equal(block->inner->norm->running_var.cpu(), torch::ones({3})));
  }
}

TEST(DeferredBatchNorm, ChangesNoOutputAndNoGradient) {
  const Tensor x = torch::randn({6, 3, 4, 4}, torch::kDouble);
  const auto run = [&](bool defer) {
    torch::manual_seed(0);
    Block block;
    block->to(torch::kDouble);
    GPipe pipeline(Sequential(block, torch::nn::Tanh()),
                   options({1, 1}, 3).deferred_batch_norm(defer));
    const Tensor output = pipeline->forward(x.to(device()));
    output.pow(2).sum().backward();
    std::vector<Tensor> all = testing::grads_of(*pipeline);
    all.push_back(output.detach());
    return all;
  };
  EXPECT_EQ(testing::difference(run(true), run(false)), "");
}

TEST(DeferredBatchNorm, DoesNothingInEvalMode) {
  BatchNorm1d norm(1);
  GPipe pipeline = deferred(Sequential(norm), {1}, 4);
  pipeline->eval();
  pipeline->forward(column(8).to(torch::kFloat).to(device()));
  expect_no_estimates(norm);
}

TEST(DeferredBatchNorm, CountsWithoutGradientsToo) {
  BatchNorm1d norm = norm_of_column();
  GPipe pipeline = deferred(Sequential(norm), {1}, 4);
  torch::NoGradGuard no_grad;
  pipeline->forward(column(8).to(device()));
  EXPECT_NEAR(value(norm->running_mean), 0.35, 1e-12);
}

TEST(DeferredBatchNorm, LeavesNoTraceOfAFailedForward) {
  BatchNorm1d norm = norm_of_column();
  bool fail = true;
  GPipe pipeline =
      deferred(Sequential(norm, testing::layer([&](Tensor x) {
                            if (fail && current_microbatch() == 2) {
                              throw std::runtime_error("no");
                            }
                            return x;
                          })),
               {1, 1}, 4);
  EXPECT_EQ(error_of([&] { pipeline->forward(column(8).to(device())); }),
            "std::runtime_error: no");
  expect_no_estimates(norm);
  fail = false;
  pipeline->forward(column(8).to(device()));
  expect_estimates(norm, 0.35, 1.5, 1);
}

// LibTorch counts the mini-batch before it refuses a single row.
TEST(DeferredBatchNorm, LeavesNoTraceOfRowsThatTheLayerRefuses) {
  BatchNorm1d norm = norm_of_column();
  GPipe pipeline = deferred(Sequential(norm), {1}, 3);
  EXPECT_NE(error_of([&] { pipeline->forward(column(7).to(device())); }), "");
  EXPECT_EQ(value(norm->num_batches_tracked), 0);
  pipeline->forward(column(8).to(device()));
  expect_estimates(norm, 0.35, 1.5, 1);
}

TEST(DeferredBatchNorm, CountsPartsWithoutRowsWithTheOthers) {
  BatchNorm1d norm =
      norm_of_column(BatchNorm1dOptions(1).momentum(std::nullopt));
  GPipe pipeline = deferred(Sequential(norm), {1}, 2);
  const Tensor x = column(8).to(device());
  pipeline->forward(Microbatches<Tensor>{
      {x.slice(0, 0, 4), x.slice(0, 0, 0), x.slice(0, 4, 8)}});
  expect_estimates(norm, 3.5, 6, 1);
  pipeline->forward(x.slice(0, 0, 0));
  EXPECT_EQ(value(norm->num_batches_tracked), 2);
  EXPECT_NEAR(value(norm->running_mean), 3.5, 1e-12);
}

// A failed step takes its statistics back, but not those of a later
// mini-batch.
TEST(DeferredBatchNorm, KeepsAMiniBatchThatAHookRunsBeforeItThrows) {
  BatchNorm1d norm = norm_of_column();
  GPipe pipeline = deferred(Sequential(norm), {1}, 2);
  const Tensor x = column(8).to(device());
  bool runs = false;
  const unsigned hook =
      norm->weight.register_hook([&](const Tensor& grad) -> Tensor {
        if (runs) pipeline->forward(x);
        throw std::runtime_error("hook " + std::to_string(grad.dim()));
      });
  const auto step = [&] {
    pipeline->train_step(x, column(8), testing::mean_square, fill_drain(1, 2));
  };
  EXPECT_EQ(error_of(step), "std::runtime_error: hook 1");
  expect_no_estimates(norm);
  runs = true;
  EXPECT_EQ(error_of(step), "std::runtime_error: hook 1");
  EXPECT_EQ(value(norm->num_batches_tracked), 2);
  EXPECT_NEAR(value(norm->running_mean), 0.35 + 0.9 * 0.35, 1e-12);
  norm->weight.remove_hook(hook);
}

TEST(DeferredBatchNorm, LeavesLayersWithoutRunningStatisticsAlone) {
  BatchNorm1d norm =
      norm_of_column(BatchNorm1dOptions(1).track_running_stats(false));
  GPipe pipeline = deferred(Sequential(norm), {1}, 2);
  const Tensor output = pipeline->forward(column(8).to(device()));
  // Each half is normalised by itself: 0 to 3, then 4 to 7.
  EXPECT_TRUE(torch::allclose(output.narrow(0, 0, 4), output.narrow(0, 4, 4),
                              1e-12, 1e-12));
}

// A layer that is called twice in a forward gets two inputs.
TEST(DeferredBatchNorm, CountsALayerThatIsCalledTwiceOnce) {
  BatchNorm1d norm = norm_of_column();
  struct TwiceImpl : torch::nn::Module {
    explicit TwiceImpl(BatchNorm1d norm_in) : norm(norm_in) {
      register_module("norm", norm);
    }
    Tensor forward(const Tensor& x) { return norm(x) + norm(x + 8); }
    BatchNorm1d norm;
  };
  GPipe pipeline =
      deferred(Sequential(std::make_shared<TwiceImpl>(norm)), {1}, 2);
  pipeline->forward(column(8).to(device()));
  // The statistics of 0 to 15.
  expect_estimates(norm, 0.75, 0.9 + 0.1 * 68.0 / 3, 1);
}

TEST(DeferredBatchNorm, SeesALayerThatHasReplacedAnother) {
  struct HolderImpl : torch::nn::Module {
    HolderImpl() { register_module("norm", norm); }
    Tensor forward(const Tensor& x) { return norm(x); }
    BatchNorm1d norm = norm_of_column();
  };
  const auto holder = std::make_shared<HolderImpl>();
  GPipe pipeline = deferred(Sequential(holder), {1}, 4);
  const auto alone = std::make_shared<HolderImpl>();
  DeferredBatchNorm statistics(alone);
  for (const auto& each : {holder, alone}) {
    each->norm = each->replace_module("norm", norm_of_column());
    each->norm->to(device());
  }
  pipeline->forward(column(8).to(device()));
  {
    const auto scope = statistics.observe();
    for (const Tensor& piece : column(8).to(device()).chunk(4)) {
      alone->forward(piece);
    }
  }
  statistics.commit();
  expect_estimates(holder->norm, 0.35, 1.5, 1);
  expect_estimates(alone->norm, 0.35, 1.5, 1);
}

// The statistics are committed between the forward and the second call of the
// layer.
TEST(DeferredBatchNorm, CountsARecomputedLayerOnce) {
  for (const Checkpoint mode : kModes) {
    BatchNorm1d norm = norm_of_column();
    GPipe pipeline = deferred(Sequential(Recomputed(norm)), {1}, 4, mode);
    const Tensor x = column(8).to(device()).requires_grad_();
    pipeline->forward(x).square().sum().backward();
    expect_estimates(norm, 0.35, 1.5, 1);
    // Each of the two rows of a micro-batch becomes -1 or 1, up to epsilon.
    EXPECT_NEAR(value(norm->weight.grad()), 8 * 2, 1e-3);
  }
}

// As of a generator and a discriminator.
TEST(DeferredBatchNorm, ScopesOfTwoModelsMayBeOpenAtOnce) {
  BatchNorm1d first = norm_of_column(), second = norm_of_column();
  DeferredBatchNorm of_first(first.ptr()), of_second(second.ptr());
  {
    const auto outer = of_first.observe();
    const auto inner = of_second.observe();
    for (const Tensor& piece : column(8).chunk(4)) {
      second(first(piece) * 0 + piece);
    }
  }
  for (const BatchNorm1d& norm : {first, second}) {
    EXPECT_EQ(value(norm->running_mean), 0);
  }
  of_first.commit();
  of_second.commit();
  for (const BatchNorm1d& norm : {first, second}) {
    expect_estimates(norm, 0.35, 1.5, 1);
  }
}

TEST(DeferredBatchNorm, AScopeMayOutliveIt) {
  BatchNorm1d norm(1);
  norm->to(device(), torch::kDouble);
  auto statistics = std::make_unique<DeferredBatchNorm>(norm.ptr());
  const auto scope = statistics->observe();
  statistics.reset();
  norm->forward(column(8).to(device()));
  EXPECT_EQ(value(norm->running_mean), 0);
}

TEST(DeferredBatchNorm, WorksAlone) {
  BatchNorm1d norm(1);
  norm->to(device(), torch::kDouble);
  Sequential model(norm, torch::nn::Tanh());
  DeferredBatchNorm statistics(model.ptr());
  {
    const auto scope = statistics.observe();
    for (const Tensor& piece : column(8).to(device()).split(3)) {
      model->forward(piece).sum().backward();
    }
  }
  EXPECT_EQ(value(norm->running_mean), 0);
  statistics.commit();
  expect_estimates(norm, 0.35, 1.5, 1);

  statistics.commit();  // without any micro-batch
  EXPECT_EQ(value(norm->num_batches_tracked), 1);
  {
    const auto scope = statistics.observe();
    model->forward(column(8).to(device()));
  }
  statistics.discard();
  expect_estimates(norm, 0.35, 1.5, 1);

  // Outside a scope the layer updates its estimates as in LibTorch.
  model->forward(column(8).to(device()));
  EXPECT_NEAR(value(norm->running_mean), 0.9 * 0.35 + 0.35, 1e-12);
  EXPECT_EQ(error_of([] { DeferredBatchNorm none(nullptr); }),
            "c10::ValueError: the module is null");
}

}  // namespace
}  // namespace gpipe
