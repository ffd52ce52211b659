// Tests of the losses of tasks, on outputs written by hand.
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "training/program/classification.h"
#include "training/program/language.h"
#include "training/program/segmentation.h"

namespace gpipe::train_program {
namespace {

TEST(LossTest, LabelsThatAreMissingHaveNoWeight) {
  const at::Tensor logits = at::zeros({4, 5});
  const WeightedLoss loss =
      loss_of_labels(logits, at::tensor({1, -100, 4, -100}, at::kLong));
  EXPECT_EQ(loss.weight.item<int64_t>(), 2);
  EXPECT_NEAR(loss.sum.item<double>(), 2 * std::log(5.), 1e-5);
}

TEST(LossTest, PixelsOfANegativeMaskHaveNoWeight) {
  const at::Tensor logits = at::tensor({1., 1., -1., -1.}).view({1, 2, 2});
  const at::Tensor mask = at::tensor({1., 0., 0., 0.}).view({1, 2, 2});
  const at::Tensor none = at::full({1, 2, 2}, -1.);
  const WeightedLoss loss =
      loss_of_masks(at::stack({logits, logits}), at::stack({mask, none}));
  EXPECT_EQ(loss.weight.item<int64_t>(), 4);
  // ln(1 + 1/e) per correct pixel, and 1 more for the wrong one.
  EXPECT_NEAR(loss.sum.item<double>(), 4 * std::log1p(std::exp(-1.)) + 1, 1e-6);
}

TEST(LossTest, PaddingHasNoWeightAndIsNotScored) {
  const at::Tensor logits = at::zeros({2, 3, 5});
  const at::Tensor targets =
      at::tensor({1, 2, -100, 3, -100, -100}, at::kLong).view({2, 3});
  const WeightedLoss loss = loss_of_tokens(logits, targets);
  EXPECT_EQ(loss.weight.item<int64_t>(), 3);
  EXPECT_NEAR(loss.sum.item<double>(), 3 * std::log(5.), 1e-5);
  const Score score = score_of_tokens(logits, targets);
  EXPECT_EQ(score.items, 3);
  EXPECT_NEAR(score.loss, 3 * std::log(5.), 1e-5);
}

TEST(LossTest, AMicroBatchOfPaddingHasTheLossZero) {
  const WeightedLoss loss =
      loss_of_tokens(at::zeros({1, 2, 5}), at::full({1, 2}, -100, at::kLong));
  EXPECT_EQ(loss.weight.item<int64_t>(), 0);
  EXPECT_EQ(loss.sum.item<double>(), 0);
}

}  // namespace
}  // namespace gpipe::train_program
