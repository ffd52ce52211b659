#include "gpipe/distributed/replicas/parameter_shards.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "gpipe/distributed/replicas/replica_sums.h"

namespace gpipe::internal {
namespace {

using ::testing::Pair;

TEST(MemberRows, CoverAllRowsOnceInOrder) {
  for (int64_t rows = 0; rows < 9; ++rows) {
    for (std::size_t members = 1; members < 6; ++members) {
      int64_t next = 0;
      for (std::size_t k = 0; k < members; ++k) {
        const auto [begin, count] = rows_of_member({rows, 2}, members, k);
        EXPECT_EQ(begin, next);
        EXPECT_LE(count, rows / static_cast<int64_t>(members) + 1);
        next = begin + count;
      }
      EXPECT_EQ(next, rows);
    }
  }
  EXPECT_THAT(rows_of_member({}, 2, 0), Pair(0, 0));
  EXPECT_THAT(rows_of_member({}, 2, 1), Pair(0, 1));
}

TEST(ParameterShards, AreLeavesThatShareTheMemoryOfTheirRows) {
  at::Tensor weight = at::arange(10, at::kFloat).view({5, 2});
  weight.requires_grad_();
  const at::Tensor frozen = at::ones({2});
  at::Tensor scalar = at::scalar_tensor(7, at::kFloat);
  scalar.requires_grad_();
  ParameterShards shards({weight, frozen, scalar}, 2, 1);
  const auto own = shards.own();
  ASSERT_EQ(own.size(), 2u) << "a frozen parameter needs no optimizer";
  EXPECT_TRUE(own[0].is_leaf());
  EXPECT_TRUE(own[0].requires_grad());
  EXPECT_FALSE(own[0].is_view());
  EXPECT_TRUE(own[0].equal(weight.detach().narrow(0, 2, 3)));
  own[0].detach().fill_(-1);
  EXPECT_EQ(weight[2][0].item<float>(), -1);
  EXPECT_EQ(weight[1][1].item<float>(), 3);
  own[1].detach().fill_(8);
  EXPECT_EQ(scalar.item<float>(), 8);
  EXPECT_TRUE(shards.has(weight));
  EXPECT_FALSE(shards.has(own[0]));
  // The first replica has no row of the scalar.
  EXPECT_EQ(ParameterShards({weight, scalar}, 2, 0).own().size(), 1u);
}

TEST(ParameterShards, FollowAParameterToOtherMemory) {
  at::Tensor weight = at::ones({4});
  weight.requires_grad_();
  ParameterShards shards({weight}, 2, 0);
  const at::Tensor shard = shards.own().at(0);
  weight.set_data(at::full({4}, 2, at::kDouble));
  EXPECT_TRUE(shards.own().at(0).is_same(shard));
  EXPECT_EQ(shard.scalar_type(), at::kDouble);
  shard.detach().fill_(5);
  EXPECT_TRUE(weight.equal(at::tensor({5., 5., 2., 2.}, at::kDouble)));
}

}  // namespace
}  // namespace gpipe::internal
