#include "gpipe/runtime/autograd/grad_sum.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "gpipe/testing/devices.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
using testing::on_device;
using testing::ones;

Tensor full(at::IntArrayRef sizes, double value) {
  return at::full(sizes, value, at::TensorOptions().device(testing::device()));
}

TEST(GradSum, OfNothingIsUndefined) {
  GradSum sum;
  sum.add(1, Tensor());
  EXPECT_FALSE(sum.take(0).defined());
  EXPECT_FALSE(sum.take(1).defined());
}

TEST(GradSum, AddsByLeafInOrder) {
  GradSum sum;
  sum.add(0, full({2}, 1.0));
  sum.add(1, full({3}, 10.0));
  sum.add(0, full({2}, 2.0));
  sum.add(0, Tensor());
  sum.add(0, full({2}, 4.0));
  EXPECT_TRUE(at::equal(sum.take(0), full({2}, 7.0)));
  EXPECT_TRUE(at::equal(sum.take(1), full({3}, 10.0)));
}

TEST(GradSum, IsGoneOnceItIsTaken) {
  GradSum sum;
  sum.add(0, ones({2}));
  EXPECT_EQ(sum.take(0).use_count(), 1);
  EXPECT_FALSE(sum.take(0).defined());
}

TEST(GradSum, AddsInPlaceIntoWhatNobodyElseHolds) {
  GradSum sum;
  Tensor first = ones({2});
  const void* memory = first.data_ptr();
  sum.add(0, std::move(first));
  sum.add(0, ones({2}));
  const Tensor taken = sum.take(0);
  EXPECT_EQ(taken.data_ptr(), memory);
  EXPECT_TRUE(at::equal(taken, full({2}, 2.0)));
}

TEST(GradSum, AddsInPlaceIntoAViewThatNobodyElseHoldsTheBaseOf) {
  const auto add_twice = [](Tensor first) {
    GradSum sum;
    sum.add(0, std::move(first));
    sum.add(0, ones({3, 2}));
    return sum.take(0);
  };
  Tensor alone = full({2, 3}, 1.0).t();
  const void* memory = alone.data_ptr();
  EXPECT_EQ(add_twice(std::move(alone)).data_ptr(), memory);

  const Tensor base = full({2, 3}, 1.0);
  EXPECT_NE(add_twice(base.t()).data_ptr(), base.data_ptr());
  EXPECT_TRUE(at::equal(base, full({2, 3}, 1.0)));
  const Tensor other = base.view({6});
  EXPECT_TRUE(at::equal(add_twice(base.t()), full({3, 2}, 2.0)));
  EXPECT_TRUE(at::equal(other, full({6}, 1.0)));
}

TEST(GradSum, LeavesAloneWhatSomebodyElseHolds) {
  const Tensor held = ones({2});
  const Tensor base = ones({4});
  GradSum sum;
  sum.add(0, held);
  sum.add(0, ones({2}));
  sum.add(1, base.narrow(0, 0, 2));
  sum.add(1, ones({2}));
  EXPECT_TRUE(at::equal(sum.take(0), full({2}, 2.0)));
  EXPECT_TRUE(at::equal(sum.take(1), full({2}, 2.0)));
  EXPECT_TRUE(at::equal(held, ones({2})));
  EXPECT_TRUE(at::equal(base, ones({4})));
}

// The gradient of a sum is one element expanded to many.
TEST(GradSum, AddsToAnExpandedGradient) {
  GradSum sum;
  sum.add(0, ones({1}).expand({3}));
  sum.add(0, on_device(at::arange(3)));
  sum.add(0, ones({1}).expand({3}));
  EXPECT_TRUE(at::equal(sum.take(0), on_device(at::arange(3)) + 2.f));
}

TEST(GradSum, AddsSparseAndDense) {
  if (testing::device().type() == c10::kHPU) {
    GTEST_SKIP() << "the simulated accelerators have no sparse tensors";
  }
  const auto sparse = [] {
    return at::sparse_coo_tensor(
        on_device(at::tensor({0, 2}, at::kLong).reshape({1, 2})), ones({2}),
        {3});
  };
  const Tensor expected = on_device(at::tensor({2.f, 0.f, 2.f}));
  GradSum sum;
  sum.add(0, sparse());
  sum.add(0, sparse());
  EXPECT_TRUE(at::equal(sum.take(0).to_dense(), expected));
  sum.add(1, sparse());
  sum.add(1, ones({3}));
  EXPECT_TRUE(at::equal(sum.take(1), on_device(at::tensor({2.f, 1.f, 2.f}))));
  sum.add(2, ones({3}));
  sum.add(2, sparse());
  EXPECT_TRUE(at::equal(sum.take(2), on_device(at::tensor({2.f, 1.f, 2.f}))));
}

at::Tensor scalar(double value) {
  return at::full({1}, value, at::TensorOptions().dtype(at::kDouble));
}

// Adds 1, 1e16 and -1e16 for micro-batches 0, 1 and 2 in the given order, and
// returns the sum. It is 0 if 1 comes first, because 1 + 1e16 is 1e16, and 1 if
// it comes last.
double sum_of(SumOrder order, const std::vector<int>& microbatches) {
  const double values[] = {1, 1e16, -1e16};
  GradSum sums(order, 3);
  for (const int i : microbatches) {
    sums.add(i, 0, scalar(values[i]));
    sums.finish(i);
  }
  return sums.take(0).item<double>();
}

TEST(GradSumOfMicrobatches, AddsAsTheyCome) {
  EXPECT_EQ(sum_of(SumOrder::kAsTheyCome, {0, 1, 2}), 0);
  EXPECT_EQ(sum_of(SumOrder::kAsTheyCome, {2, 1, 0}), 1);
}

TEST(GradSumOfMicrobatches, AddsByMicrobatchWhateverTheOrder) {
  for (const std::vector<int>& order : std::vector<std::vector<int>>{
           {0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}) {
    EXPECT_EQ(sum_of(SumOrder::kByMicrobatch, order), 0);
  }
}

TEST(GradSumOfMicrobatches, AMicrobatchWithoutGradientsPassesItsTurnOn) {
  GradSum sums(SumOrder::kByMicrobatch, 3);
  sums.add(1, 3, scalar(5));
  sums.finish(1);
  sums.finish(0);
  sums.add(2, 3, scalar(2));
  sums.finish(2);
  EXPECT_EQ(sums.take(3).item<double>(), 7);
  EXPECT_FALSE(sums.take(0).defined());
  EXPECT_FALSE(sums.take(3).defined());
}

TEST(GradSumOfMicrobatches, PartsOfAMicrobatchStayTogether) {
  // Micro-batch 1 adds 1e16 before, and -1e16 after, micro-batch 0.
  GradSum sums(SumOrder::kByMicrobatch, 2);
  sums.add(1, 0, scalar(1e16));
  sums.add(0, 0, scalar(1));
  sums.finish(0);
  sums.add(1, 0, scalar(-1e16));
  sums.finish(1);
  EXPECT_EQ(sums.take(0).item<double>(), 0);
}

TEST(GradSumOfMicrobatches, KnowsWhichMicrobatchCompletesTheSums) {
  for (const SumOrder order :
       {SumOrder::kAsTheyCome, SumOrder::kByMicrobatch}) {
    GradSum sums(order, 3);
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

TEST(GradSumOfMicrobatches, NoSumIsCompleteBeforeAnEarlierMicrobatchEnds) {
  // Early gradients are added when micro-batch 0 ends.
  const std::vector<int> order = {2, 1};
  GradSum by_microbatch(SumOrder::kByMicrobatch, 3);
  GradSum as_they_come(SumOrder::kAsTheyCome, 3);
  for (GradSum* const sums : {&by_microbatch, &as_they_come}) {
    for (const int i : order) {
      sums->add(i, 0, scalar(i));
      sums->finish(i);
    }
  }
  EXPECT_FALSE(by_microbatch.last(0));
  EXPECT_TRUE(as_they_come.last(0));
}

}  // namespace
}  // namespace gpipe::internal
