#include "gpipe/runtime/cell/grad_sum.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <utility>

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
  GradSum sum(2);
  sum.add(1, Tensor());
  EXPECT_FALSE(sum.take(0).defined());
  EXPECT_FALSE(sum.take(1).defined());
}

TEST(GradSum, AddsByLeafInOrder) {
  GradSum sum(2);
  sum.add(0, full({2}, 1.0));
  sum.add(1, full({3}, 10.0));
  sum.add(0, full({2}, 2.0));
  sum.add(0, Tensor());
  sum.add(0, full({2}, 4.0));
  EXPECT_TRUE(at::equal(sum.take(0), full({2}, 7.0)));
  EXPECT_TRUE(at::equal(sum.take(1), full({3}, 10.0)));
}

TEST(GradSum, IsGoneOnceItIsTaken) {
  GradSum sum(1);
  sum.add(0, ones({2}));
  EXPECT_EQ(sum.take(0).use_count(), 1);
  EXPECT_FALSE(sum.take(0).defined());
}

TEST(GradSum, AddsInPlaceIntoWhatNobodyElseHolds) {
  GradSum sum(1);
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
    GradSum sum(1);
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
  GradSum sum(2);
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
  GradSum sum(1);
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
  GradSum sum(3);
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

}  // namespace
}  // namespace gpipe::internal
