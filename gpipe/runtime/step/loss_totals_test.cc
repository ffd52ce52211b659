#include "gpipe/runtime/step/loss_totals.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
using testing::error_of;
using torch::tensor;

LossTotals weighted(double sum, double weight) {
  LossTotals totals;
  totals.weighted = true;
  totals.sum = tensor(sum);
  totals.weight = weight;
  return totals;
}

TEST(LossTotals, OfMeansCountEachByItsShare) {
  const LossTotals totals =
      add_up_means({tensor(2.), tensor(6.)}, {0.75, 0.25}, false);
  EXPECT_EQ(totals.sum.item<double>(), 3);
  EXPECT_EQ(totals.weight, 1);
  StepResult result;
  totals.write_to(result);
  EXPECT_EQ(result.loss.item<double>(), 3);
  EXPECT_FALSE(result.weight);
}

TEST(LossTotals, OfMeansLeaveOutPartsWithoutRows) {
  const Tensor nan = tensor(std::numeric_limits<double>::quiet_NaN());
  for (const bool reads : {false, true}) {
    const LossTotals totals =
        add_up_means({nan, tensor(6.), nan}, {0, 1, 0}, reads);
    EXPECT_EQ(totals.sum.item<double>(), 6);
    EXPECT_EQ(totals.weight, 1);
  }
  // A rank whose whole input has no rows adds nothing to those of the others.
  LossTotals all = add_up_means({nan}, {0}, true);
  all.add(add_up_means({tensor(2.)}, {1}, true));
  EXPECT_EQ(all.sum.item<double>(), 2);
}

TEST(LossTotals, OfWeightedLossesAddUpSumsWeightsAndMetrics) {
  std::deque<LossHead> heads(2);
  heads[0].weight = tensor(3);
  heads[0].metrics = {{"right", tensor(true)}};
  heads[1].weight = tensor({1.5});
  heads[1].metrics = {{"right", tensor(true)}, {"late", tensor(2.)}};
  const LossTotals totals =
      add_up_weighted({tensor(4.), tensor(5.)}, heads, true);
  StepResult result;
  totals.write_to(result);
  EXPECT_EQ(result.loss.item<double>(), 2);
  EXPECT_EQ(*result.weight, 4.5);
  EXPECT_EQ(result.metric("right").item<int64_t>(), 2);
  EXPECT_EQ(result.metric("late").item<double>(), 2);
}

// 257 needs 9 bits, bfloat16 has 8. 1000 / 256 would be 3.90625.
TEST(LossTotals, AWeightIsNotRoundedToTheDtypeOfTheLoss) {
  for (const auto& [dtype, quotient] :
       {std::pair{torch::kBFloat16, 3.890625},
        {torch::kHalf, 3.890625},
        {torch::kFloat, double{1000.0f / 257.0f}},
        {torch::kDouble, 1000.0 / 257.0},
        {torch::kLong, double{1000.0f / 257.0f}}}) {
    LossTotals totals = weighted(0, 257);
    totals.sum = torch::full({}, 1000, dtype);
    StepResult result;
    totals.write_to(result);
    EXPECT_EQ(result.loss.scalar_type(),
              dtype == torch::kLong ? torch::kFloat : dtype);
    EXPECT_EQ(result.loss.item<double>(), quotient) << dtype;
  }
}

TEST(LossTotals, MetricsOfNarrowIntegersAddUpInInt64) {
  std::deque<LossHead> heads(2);
  for (LossHead& head : heads) {
    head.weight = tensor(1.);
    head.metrics = {{"byte", torch::full({}, 200, torch::kByte)},
                    {"char", torch::full({}, -100, torch::kChar)},
                    {"int", torch::full({}, 1 << 30, torch::kInt)}};
  }
  LossTotals totals = add_up_weighted({tensor(0.), tensor(0.)}, heads, true);
  totals.add(LossTotals(totals));  // a second replica
  const std::pair<const char*, int64_t> expected[] = {
      {"byte", 800}, {"char", -400}, {"int", int64_t{1} << 32}};
  StepResult result;
  totals.write_to(result);
  for (const auto& [name, value] : expected) {
    EXPECT_EQ(result.metric(name).scalar_type(), torch::kLong) << name;
    EXPECT_EQ(result.metric(name).item<int64_t>(), value) << name;
  }
}

TEST(LossTotals, AddUpOverReplicas) {
  LossTotals totals;
  totals.add(LossTotals());  // a rank without the last stage
  totals.add(weighted(3, 1));
  totals.add(weighted(5, 3));
  EXPECT_EQ(totals.sum.item<double>(), 8);
  EXPECT_EQ(totals.weight, 4);
  LossTotals mean;
  mean.sum = tensor(1.);
  EXPECT_NE(error_of([&] { totals.add(mean); }).find("in one replica"),
            std::string::npos);
}

TEST(LossTotals, NeedAPositiveFiniteWeight) {
  LossTotals().check();
  weighted(1, 0.5).check();
  for (const double weight :
       {0., -1., std::numeric_limits<double>::infinity()}) {
    EXPECT_NE(error_of([&] {
                weighted(1, weight).check();
              }).find("must be positive and finite"),
              std::string::npos)
        << weight;
  }
  LossTotals without_rows;
  without_rows.sum = tensor(0.);
  EXPECT_NE(error_of([&] { without_rows.check(); }).find("0 rows"),
            std::string::npos);
}

}  // namespace
}  // namespace gpipe::internal
