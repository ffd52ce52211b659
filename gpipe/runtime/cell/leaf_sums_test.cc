#include "gpipe/runtime/cell/leaf_sums.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <vector>

namespace gpipe::internal {
namespace {

at::Tensor number(double value) {
  return at::full({1}, value, at::TensorOptions().dtype(at::kDouble));
}

// Adds 1, 1e16 and -1e16 for micro-batches 0, 1 and 2 in the given order, and
// returns the sum. It is 0 if 1 comes first, because 1 + 1e16 is 1e16, and 1 if
// it comes last.
double sum_of(SumOrder order, const std::vector<int>& microbatches) {
  const double values[] = {1, 1e16, -1e16};
  LeafSums sums(order, 3);
  for (const int i : microbatches) {
    sums.add(i, 0, number(values[i]));
    sums.finish(i);
  }
  return sums.take(0).item<double>();
}

TEST(LeafSumsTest, AddsAsTheyCome) {
  EXPECT_EQ(sum_of(SumOrder::kAsTheyCome, {0, 1, 2}), 0);
  EXPECT_EQ(sum_of(SumOrder::kAsTheyCome, {2, 1, 0}), 1);
}

TEST(LeafSumsTest, AddsByMicrobatchWhateverTheOrder) {
  for (const std::vector<int>& order : std::vector<std::vector<int>>{
           {0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}) {
    EXPECT_EQ(sum_of(SumOrder::kByMicrobatch, order), 0);
  }
}

TEST(LeafSumsTest, AMicrobatchWithoutGradientsPassesItsTurnOn) {
  LeafSums sums(SumOrder::kByMicrobatch, 3);
  sums.add(1, 3, number(5));
  sums.finish(1);
  sums.finish(0);
  sums.add(2, 3, number(2));
  sums.finish(2);
  EXPECT_EQ(sums.take(3).item<double>(), 7);
  EXPECT_FALSE(sums.take(0).defined());
  EXPECT_FALSE(sums.take(3).defined());
}

TEST(LeafSumsTest, PartsOfAMicrobatchStayTogether) {
  // Micro-batch 1 adds 1e16 before, and -1e16 after, micro-batch 0.
  LeafSums sums(SumOrder::kByMicrobatch, 2);
  sums.add(1, 0, number(1e16));
  sums.add(0, 0, number(1));
  sums.finish(0);
  sums.add(1, 0, number(-1e16));
  sums.finish(1);
  EXPECT_EQ(sums.take(0).item<double>(), 0);
}

TEST(LeafSumsTest, KnowsWhichMicrobatchCompletesTheSums) {
  for (const SumOrder order :
       {SumOrder::kAsTheyCome, SumOrder::kByMicrobatch}) {
    LeafSums sums(order, 3);
    for (const int i : {1, 0}) {
      EXPECT_FALSE(sums.last(i));
      sums.finish(i);
      EXPECT_FALSE(sums.complete());
    }
    EXPECT_TRUE(sums.last(2));
    sums.finish(2);
    EXPECT_TRUE(sums.complete());
  }
}

TEST(LeafSumsTest, NoSumIsCompleteBeforeAnEarlierMicrobatchEnds) {
  // Early gradients are added when micro-batch 0 ends.
  const std::vector<int> order = {2, 1};
  LeafSums by_microbatch(SumOrder::kByMicrobatch, 3);
  LeafSums as_they_come(SumOrder::kAsTheyCome, 3);
  for (LeafSums* const sums : {&by_microbatch, &as_they_come}) {
    for (const int i : order) {
      sums->add(i, 0, number(i));
      sums->finish(i);
    }
  }
  EXPECT_FALSE(by_microbatch.last(0));
  EXPECT_TRUE(as_they_come.last(0));
}

}  // namespace
}  // namespace gpipe::internal
