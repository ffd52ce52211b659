#include "gpipe/runtime/cell/batch.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using testing::error_of;
using torch::Tensor;

static_assert(std::is_same_v<PartOf<Tensor>, Tensor>);
static_assert(std::is_same_v<PartOf<Microbatches<std::vector<Tensor>>>,
                             std::vector<Tensor>>);

TEST(Batch, HoldsAWholeValue) {
  const Tensor tensor = torch::ones({2});
  Batch batch = Batch::wrap(tensor);
  EXPECT_FALSE(batch.split());
  EXPECT_EQ(batch.values().size(), 1u);
  EXPECT_TRUE(batch.whole().tensors()[0].is_same(tensor));
  EXPECT_TRUE(std::move(batch).unwrap<Tensor>().is_same(tensor));
}

TEST(Batch, HoldsPartsOfAnyShapes) {
  using Pair = std::tuple<Tensor, Tensor>;
  const Tensor a = torch::ones({2}), b = torch::ones({3, 1});
  Batch batch = Batch::wrap(Microbatches<Pair>{{{a, b}, {b, a}}});
  EXPECT_TRUE(batch.split());
  EXPECT_EQ(batch.parts(), 2);
  const auto parts = std::move(batch).unwrap_parts<Pair>().parts;
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_TRUE(std::get<0>(parts[1]).is_same(b));
  EXPECT_TRUE(std::get<1>(parts[1]).is_same(a));
}

TEST(Batch, RefusesAnotherTypeThanItHolds) {
  Batch whole = Batch::wrap(torch::ones({2}));
  EXPECT_EQ(error_of([&] {
              std::move(whole).unwrap<std::vector<Tensor>>();
            }).find("c10::TypeError"),
            0u);
}

TEST(Batch, MayHaveNoParts) {
  EXPECT_EQ(Batch::wrap(Microbatches<Tensor>()).parts(), 0);
  EXPECT_FALSE(Batch().split());
  EXPECT_TRUE(Batch().whole().tensors().empty());
}

}  // namespace
}  // namespace gpipe::internal
