// Tests of operators that depend on values, which meta tensors do not have.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "gpipe/meta/kernels.h"

namespace gpipe::internal {
namespace {

using at::Tensor;

[[maybe_unused]] const bool values_linked = (link_meta_kernels(), true);

Tensor meta_of(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta));
}

TEST(MetaValues, AreEqualForTheSameMemory) {
  const Tensor x = meta_of({2, 3});
  EXPECT_TRUE(x.equal(x));
  EXPECT_TRUE(x.equal(x.view({2, 3})));
  EXPECT_FALSE(x.equal(x.view({3, 2})));
  EXPECT_FALSE(x[0].equal(x[1]));
  EXPECT_FALSE(x.equal(meta_of({2, 3})));
}

TEST(MetaValues, CannotBeRead) {
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [] { meta_of({}).item<float>(); },
           [] { meta_of({3}).sum().item<double>(); },
           [] { meta_of({1}).is_nonzero(); },
           [] { meta_of({2}).allclose(meta_of({2})); }}) {
    EXPECT_THAT(call, ::testing::ThrowsMessage<c10::NotImplementedError>(
                          ::testing::HasSubstr("item(): reads a value, and")));
  }
}

TEST(MetaValues, DoNotDecideAboutTheShapeOfRandomIndices) {
  EXPECT_EQ(meta_of({5}).multinomial(3).sizes(), at::IntArrayRef({3}));
  const Tensor rows = meta_of({2, 5}).multinomial(3, /*replacement=*/true);
  EXPECT_EQ(rows.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(rows.scalar_type(), at::kLong);
  EXPECT_TRUE(rows.is_meta());
}

TEST(MetaValues, ThatDecideAboutShapesAreErrors) {
  const Tensor x = meta_of({2, 3});
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { x.nonzero(); }, [&] { at::masked_select(x, x.gt(0)); },
           [&] { at::_unique2(x); }, [&] { at::unique_dim(x, 0); },
           [&] { at::unique_consecutive(x); }, [&] { x.index({x.gt(0)}); },
           [&] { at::argwhere(x); },
           [&] { at::bincount(meta_of({3}, at::kLong)); },
           [&] { at::repeat_interleave(meta_of({3}, at::kLong)); }}) {
    EXPECT_THAT(
        call,
        ::testing::ThrowsMessage<c10::NotImplementedError>(
            ::testing::HasSubstr("the shape of the result depends on values")));
  }
}

}  // namespace
}  // namespace gpipe::internal
