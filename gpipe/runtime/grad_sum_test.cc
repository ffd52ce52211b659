#include "gpipe/runtime/grad_sum.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <utility>

namespace gpipe {
namespace {

using at::Tensor;

TEST(GradSum, OfNothingIsUndefined) {
  GradSum sum(2);
  sum.add(1, Tensor());
  EXPECT_FALSE(sum.take(0).defined());
  EXPECT_FALSE(sum.take(1).defined());
}

TEST(GradSum, AddsByLeafInOrder) {
  GradSum sum(2);
  sum.add(0, at::full({2}, 1.0));
  sum.add(1, at::full({3}, 10.0));
  sum.add(0, at::full({2}, 2.0));
  sum.add(0, Tensor());
  sum.add(0, at::full({2}, 4.0));
  EXPECT_TRUE(at::equal(sum.take(0), at::full({2}, 7.0)));
  EXPECT_TRUE(at::equal(sum.take(1), at::full({3}, 10.0)));
}

TEST(GradSum, IsGoneOnceItIsTaken) {
  GradSum sum(1);
  sum.add(0, at::ones({2}));
  EXPECT_EQ(sum.take(0).use_count(), 1);
  EXPECT_FALSE(sum.take(0).defined());
}

TEST(GradSum, AddsInPlaceIntoWhatNobodyElseHolds) {
  GradSum sum(1);
  Tensor first = at::ones({2});
  const void* memory = first.data_ptr();
  sum.add(0, std::move(first));
  sum.add(0, at::ones({2}));
  const Tensor taken = sum.take(0);
  EXPECT_EQ(taken.data_ptr(), memory);
  EXPECT_TRUE(at::equal(taken, at::full({2}, 2.0)));
}

TEST(GradSum, LeavesAloneWhatSomebodyElseHolds) {
  const Tensor held = at::ones({2});
  const Tensor base = at::ones({4});
  GradSum sum(2);
  sum.add(0, held);
  sum.add(0, at::ones({2}));
  sum.add(1, base.narrow(0, 0, 2));
  sum.add(1, at::ones({2}));
  EXPECT_TRUE(at::equal(sum.take(0), at::full({2}, 2.0)));
  EXPECT_TRUE(at::equal(sum.take(1), at::full({2}, 2.0)));
  EXPECT_TRUE(at::equal(held, at::ones({2})));
  EXPECT_TRUE(at::equal(base, at::ones({4})));
}

// The gradient of a sum is one element seen many times.
TEST(GradSum, AddsToAnExpandedGradient) {
  GradSum sum(1);
  sum.add(0, at::ones({1}).expand({3}));
  sum.add(0, at::arange(3));
  sum.add(0, at::ones({1}).expand({3}));
  EXPECT_TRUE(at::equal(sum.take(0), at::arange(3) + 2.f));
}

TEST(GradSum, AddsSparseAndDense) {
  const auto sparse = [] {
    return at::sparse_coo_tensor(at::tensor({0, 2}, at::kLong).reshape({1, 2}),
                                 at::ones({2}), {3});
  };
  const Tensor expected = at::tensor({2.f, 0.f, 2.f});
  GradSum sum(3);
  sum.add(0, sparse());
  sum.add(0, sparse());
  EXPECT_TRUE(at::equal(sum.take(0).to_dense(), expected));
  sum.add(1, sparse());
  sum.add(1, at::ones({3}));
  EXPECT_TRUE(at::equal(sum.take(1), at::tensor({2.f, 1.f, 2.f})));
  sum.add(2, at::ones({3}));
  sum.add(2, sparse());
  EXPECT_TRUE(at::equal(sum.take(2), at::tensor({2.f, 1.f, 2.f})));
}

}  // namespace
}  // namespace gpipe
