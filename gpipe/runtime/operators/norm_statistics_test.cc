#include "gpipe/runtime/operators/norm_statistics.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>

#include <utility>

#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::internal {
namespace {

TEST(NormStatistics, NeedsNothingElseOfTheRuntime) {
  const auto norm = std::make_shared<torch::nn::BatchNorm1dImpl>(1);
  norm->to(torch::kDouble);
  NormStatistics statistics({norm});
  const at::Tensor rows =
      at::arange(8, at::TensorOptions().dtype(at::kDouble)).reshape({8, 1});
  {
    NormScope scope(&statistics);
    for (const at::Tensor& piece : rows.split(2)) {
      // Operators without an interceptor also run in the scope.
      norm->forward(piece * 2 - piece).sum();
    }
  }
  EXPECT_EQ(norm->running_mean.item<double>(), 0);
  statistics.commit();
  EXPECT_NEAR(norm->running_mean.item<double>(), 0.35, 1e-12);
  EXPECT_NEAR(norm->running_var.item<double>(), 1.5, 1e-9);
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1);
}

// The running statistics of `norm` after pieces of a mini-batch, computed for
// this layer alone.
struct Expected {
  at::Tensor mean, variance;

  Expected(const torch::nn::BatchNorm1dImpl& norm,
           const std::vector<at::Tensor>& pieces, double epsilon) {
    at::Tensor whole, squares;
    double count = 0;
    for (const at::Tensor& piece : pieces) {
      const auto [out, m, inverse] = at::native_batch_norm(
          piece, {}, {}, {}, {}, /*training=*/true, 0.1, epsilon);
      const auto n = static_cast<double>(piece.size(0));
      const at::Tensor s = inverse.to(at::kDouble).pow(-2).sub(epsilon) * n;
      const at::Tensor d = m.to(at::kDouble);
      if (count == 0) {
        whole = d;
        squares = s;
      } else {
        const at::Tensor step = d - whole;
        squares = squares + s + step.square() * (count * n / (count + n));
        whole = whole + step * (n / (count + n));
      }
      count += n;
    }
    const at::Tensor unbiased = squares.clamp_min(0) / (count - 1);
    const auto update = [&](const at::Tensor& running,
                            const at::Tensor& value) {
      const at::Tensor old = running.to(at::kDouble);
      const auto f = norm.options.momentum();
      return (f ? old * (1 - *f) + value * *f
                : old + (value - old) /
                            (norm.num_batches_tracked + 1).to(at::kDouble))
          .to(running.dtype());
    };
    mean = update(norm.running_mean, whole);
    variance = update(norm.running_var, unbiased);
  }
};

// Layers of all kinds together: each has the bits that it has alone.
TEST(NormStatistics, OfManyLayersHaveTheBitsOfEach) {
  using torch::nn::BatchNorm1dImpl;
  using torch::nn::BatchNorm1dOptions;
  torch::manual_seed(1);
  struct Case {
    std::shared_ptr<BatchNorm1dImpl> norm;
    double epsilon;
    std::vector<at::Tensor> pieces;
  };
  std::vector<Case> cases;
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (int k = 0; k < 12; ++k) {
    const double epsilon = 1e-5 * (k + 1);
    BatchNorm1dOptions options(3 + k);
    options.eps(epsilon);
    if (k % 3 == 0) {
      options.momentum(std::nullopt);
    } else {
      options.momentum(0.1 * k / 2);
    }
    auto norm = std::make_shared<BatchNorm1dImpl>(options);
    if (k % 4 == 3) norm->to(torch::kDouble);
    norm->running_mean.normal_();
    std::vector<at::Tensor> pieces;
    for (int i = 0; i < 1 + k % 5; ++i) {
      pieces.push_back(
          torch::randn({5 + 2 * i + k, 3 + k}, norm->running_mean.options()));
    }
    modules.push_back(norm);
    cases.push_back({std::move(norm), epsilon, std::move(pieces)});
  }
  NormStatistics statistics(modules);
  for (int step = 0; step < 2; ++step) {
    std::vector<Expected> expected;
    for (const Case& each : cases) {
      expected.emplace_back(*each.norm, each.pieces, each.epsilon);
      NormScope scope(&statistics);
      for (const at::Tensor& piece : each.pieces) each.norm->forward(piece);
    }
    statistics.commit();
    for (std::size_t k = 0; k < cases.size(); ++k) {
      const BatchNorm1dImpl& norm = *cases[k].norm;
      EXPECT_TRUE(norm.running_mean.equal(expected[k].mean)) << k;
      EXPECT_TRUE(norm.running_var.equal(expected[k].variance)) << k;
      EXPECT_EQ(norm.num_batches_tracked.item<int64_t>(), step + 1) << k;
    }
  }
}

TEST(NormStatistics, DiscardTheCountsOfAllLayers) {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  std::vector<std::shared_ptr<torch::nn::BatchNorm1dImpl>> norms;
  for (int k = 0; k < 3; ++k) {
    norms.push_back(std::make_shared<torch::nn::BatchNorm1dImpl>(2));
    modules.push_back(norms.back());
  }
  norms[1]->to(torch::kDouble);
  NormStatistics statistics(modules);
  {
    NormScope scope(&statistics);
    for (int k = 0; k < 3; ++k) {
      for (int call = 0; call <= k; ++call) {
        norms[k]->forward(
            torch::randn({4, 2}, norms[k]->running_mean.options()));
      }
    }
  }
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(norms[k]->num_batches_tracked.item<int64_t>(), k + 1);
  }
  for (int again = 0; again < 2; ++again) {
    statistics.discard();
    for (const auto& each : norms) {
      EXPECT_EQ(each->num_batches_tracked.item<int64_t>(), 0);
    }
  }
}

}  // namespace
}  // namespace gpipe::internal

namespace gpipe::simulated {
namespace {

using internal::NormScope;
using internal::NormStatistics;

class NormLaunchesTest : public SimulatedTest {};

// BatchNorm layers on a device, and the statistics of some micro-batches.
struct Norms {
  std::vector<std::shared_ptr<torch::nn::BatchNorm1dImpl>> layers;
  std::unique_ptr<NormStatistics> statistics;

  Norms(int count, int microbatches) {
    std::vector<std::shared_ptr<torch::nn::Module>> modules;
    for (int k = 0; k < count; ++k) {
      layers.push_back(std::make_shared<torch::nn::BatchNorm1dImpl>(3 + k));
      layers.back()->to(hpu(0));
      modules.push_back(layers.back());
    }
    statistics = std::make_unique<NormStatistics>(modules);
    const NormScope scope(statistics.get());
    for (int i = 0; i < microbatches; ++i) {
      for (int k = 0; k < count; ++k) {
        layers[k]->forward(torch::randn({4, 3 + k}).to(hpu(0)));
      }
    }
    synchronize();
  }
};

TEST_F(NormLaunchesTest, OfACommitDoNotDependOnTheNumberOfLayers) {
  for (const int microbatches : {1, 2, 8}) {
    for (const int layers : {1, 2, 20}) {
      const Norms norms(layers, microbatches);
      const Counts before = counts();
      norms.statistics->commit();
      const Counts taken = counts() - before;
      EXPECT_EQ(taken.launches, 28 + 7 * (microbatches - 1))
          << layers << " layers";
      EXPECT_EQ(taken.host_waits, 0);
    }
  }
}

TEST_F(NormLaunchesTest, OfADiscardDoNotDependOnTheNumberOfLayers) {
  for (const int layers : {1, 2, 20}) {
    const Norms norms(layers, 2);
    const Counts before = counts();
    norms.statistics->discard();
    EXPECT_EQ((counts() - before).launches, 3) << layers << " layers";
    norms.statistics->discard();
    EXPECT_EQ((counts() - before).launches, 3) << "nothing is left";
    for (const auto& each : norms.layers) {
      EXPECT_EQ(each->num_batches_tracked.item<int64_t>(), 0);
    }
  }
}

}  // namespace
}  // namespace gpipe::simulated
