// Tests of the scores of tasks, on outputs written by hand.
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

TEST(ScoreTest, LabelsThatAreFoundAreCountedAndMissingOnesAreNot) {
  const at::Tensor logits =
      at::tensor({0., 9., 0., 8., 0., 0., 0., 0., 7., 5., 0., 0.}).view({4, 3});
  const at::Tensor labels = at::tensor({1, 2, 2, -100}, at::kLong);
  const Score score = score_of_labels(logits, labels);
  EXPECT_EQ(score.items, 3);
  EXPECT_EQ(score.value, 2);
  const auto loss = [](double right, double other) {
    return std::log(1 + std::exp(other - right) + std::exp(0 - right));
  };
  EXPECT_NEAR(score.loss, loss(9, 0) + loss(0, 8) + loss(7, 0), 1e-5);
}

TEST(ScoreTest, DiceIsThatOfEachImage) {
  // Found are 2 pixels. The mask has 1, which is among them: 2 * 1 / 3.
  const at::Tensor first = at::tensor({1., 1., -1., -1.}).view({1, 2, 2});
  const at::Tensor first_mask = at::tensor({1., 0., 0., 0.}).view({1, 2, 2});
  // Both are empty: 1.
  const at::Tensor none = at::tensor({-1., -1., -1., -1.}).view({1, 2, 2});
  const at::Tensor empty = at::zeros({1, 2, 2});
  // A negative mask does not count.
  const at::Tensor missing = at::tensor({-1., -1., -1., -1.}).view({1, 2, 2});
  const Score score = score_of_masks(at::stack({first, none, first}),
                                     at::stack({first_mask, empty, missing}));
  EXPECT_EQ(score.items, 2);
  EXPECT_DOUBLE_EQ(score.value, 2. / 3 + 1);
  // ln(1 + 1/e) per correct pixel, and 1 more for the wrong one of 4 pixels.
  EXPECT_NEAR(score.loss, 2 * std::log1p(std::exp(-1.)) + 0.25, 1e-6);
}

TEST(ScoreTest, TokensAreCountedAndTheirLossesAddedUp) {
  const at::Tensor logits = at::zeros({2, 3, 5});
  const Score score = score_of_tokens(logits, at::zeros({2, 3}, at::kLong));
  EXPECT_EQ(score.items, 6);
  EXPECT_NEAR(score.loss, 6 * std::log(5.), 1e-5);
}

}  // namespace
}  // namespace gpipe::train_program
