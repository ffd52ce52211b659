#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "benchmarks/resnet101_accuracy/train.h"

namespace gpipe::benchmarks {
namespace {

TEST(ChecksumTest, IsFnv1aForNothing) {
  EXPECT_EQ(checksum({}), 0xCBF29CE484222325U);
}

TEST(ChecksumTest, DoesNotDependOnStrides) {
  const at::Tensor matrix = at::arange(6, at::kFloat).view({2, 3});
  EXPECT_EQ(checksum({{"a", matrix}}),
            checksum({{"a", matrix.t().contiguous().t()}}));
}

TEST(ChecksumTest, SeesOneBit) {
  const at::Tensor zeros = at::zeros(4);
  at::Tensor other = zeros.clone();
  other[2] = -0.0;
  EXPECT_TRUE(at::equal(zeros, other));
  EXPECT_NE(checksum({{"a", zeros}}), checksum({{"a", other}}));
}

TEST(ChecksumTest, SeesNamesShapesAndDtypes) {
  const at::Tensor zeros = at::zeros(4);
  const uint64_t sum = checksum({{"a", zeros}});
  EXPECT_NE(sum, checksum({{"b", zeros}}));
  EXPECT_NE(sum, checksum({{"a", zeros.view({2, 2})}}));
  EXPECT_NE(sum, checksum({{"a", zeros.to(at::kInt)}}));
}

}  // namespace
}  // namespace gpipe::benchmarks
