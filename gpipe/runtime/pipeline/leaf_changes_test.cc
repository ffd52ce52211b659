#include "gpipe/runtime/pipeline/leaf_changes.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <vector>

namespace gpipe::internal {
namespace {

TEST(LeafChanges, TellsAWriteWithoutANewVersionFromOneWithIt) {
  const std::vector<at::Tensor> leaves = {at::zeros({3, 5}), at::zeros({1})};
  LeafChanges changes;
  for (const at::Tensor& leaf : leaves) changes.watch(leaf);
  EXPECT_EQ(changes.without_version(), nullptr);
  EXPECT_EQ(changes.with_version(), nullptr);

  leaves[1].data().add_(1);
  ASSERT_NE(changes.without_version(), nullptr);
  EXPECT_TRUE(changes.without_version()->is_same(leaves[1]));
  EXPECT_EQ(changes.with_version(), nullptr);

  leaves[0].add_(1);
  EXPECT_TRUE(changes.without_version()->is_same(leaves[1]));
  ASSERT_NE(changes.with_version(), nullptr);
  EXPECT_TRUE(changes.with_version()->is_same(leaves[0]));
}

TEST(LeafChanges, ReadsTheFirstTheMiddleAndTheLastElementInMemory) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const int64_t k : {0, 7, 14}) {
      // Columns and rows change places, and the memory does not.
      const at::Tensor leaf = at::zeros({3, 5}, type).t();
      LeafChanges changes;
      changes.watch(leaf);
      leaf.t().data().view({15})[k] = 1;
      EXPECT_NE(changes.without_version(), nullptr) << type << ", " << k;
    }
  }
}

TEST(LeafChanges, TakesLeavesWithoutMemoryOrElements) {
  const std::vector<at::Tensor> leaves = {
      at::empty({2}, at::kMeta), at::empty({0}), at::zeros({1}).expand({4}),
      at::eye(2).to_sparse()};
  LeafChanges changes;
  for (const at::Tensor& leaf : leaves) changes.watch(leaf);
  EXPECT_EQ(changes.without_version(), nullptr);
  EXPECT_EQ(changes.with_version(), nullptr);
}

}  // namespace
}  // namespace gpipe::internal
