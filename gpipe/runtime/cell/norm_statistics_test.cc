// A test of its own: it is linked without the rest of the runtime, which also
// intercepts operators.
#include "gpipe/runtime/cell/norm_statistics.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>

#include <memory>

namespace gpipe::internal {
namespace {

TEST(NormStatistics, NeedsNothingElseOfTheRuntime) {
  const auto norm = std::make_shared<torch::nn::BatchNorm1dImpl>(1);
  norm->to(torch::kDouble);
  NormStatistics statistics({norm});
  const at::Tensor rows =
      at::arange(8, at::TensorOptions().dtype(at::kDouble)).reshape({8, 1});
  {
    NormScope scope(&statistics, /*record=*/true);
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

}  // namespace
}  // namespace gpipe::internal
