#include "gpipe/distributed/ending.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "gpipe/distributed/world/bytes.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using testing::error_of;

Ending ending() {
  Ending ending;
  ending.drew = true;
  ending.replica = 3;
  ending.type = at::kDouble;
  ending.losses = {0.5, -2};
  ending.totals.weighted = true;
  ending.totals.sum = at::scalar_tensor(-1.5, at::kDouble);
  ending.totals.weight = 0.1;
  ending.totals.metrics = {
      {"correct", at::scalar_tensor((int64_t{1} << 60) + 1, at::kLong)},
      {"loss", at::scalar_tensor(0.5, at::kBFloat16)}};
  return ending;
}

TEST(Ending, ComesBack) {
  const Ending back = Ending::decode(ending().encode());
  EXPECT_TRUE(back.drew);
  EXPECT_EQ(back.replica, 3);
  EXPECT_EQ(back.type, at::kDouble);
  EXPECT_EQ(back.losses, ending().losses);
  EXPECT_TRUE(back.totals.weighted);
  EXPECT_EQ(back.totals.sum.item<double>(), -1.5);
  EXPECT_EQ(back.totals.weight, 0.1);
  ASSERT_EQ(back.totals.metrics.size(), 2u);
  EXPECT_EQ(back.totals.metrics[0].first, "correct");
  EXPECT_EQ(back.totals.metrics[0].second.item<int64_t>(),
            (int64_t{1} << 60) + 1);
  EXPECT_EQ(back.totals.metrics[1].second.scalar_type(), at::kBFloat16);
  EXPECT_EQ(back.totals.metrics[1].second.item<double>(), 0.5);
  EXPECT_TRUE(Ending::decode(Ending().encode()).losses.empty());
}

TEST(Ending, IsRefusedIfItIsCutOffOrTooLong) {
  const std::string bytes = ending().encode();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(error_of([&] { Ending::decode(bytes.substr(0, size)); }), "")
        << size;
  }
  EXPECT_NE(error_of([&] { Ending::decode(bytes + "x"); }), "");
}

// Reading such a count must end, and allocate nothing for it.
TEST(Ending, IsRefusedIfItsLengthsAreHuge) {
  const uint64_t huge = uint64_t{1} << 61;
  std::string count;
  put(count, huge);
  std::string bytes = ending().encode();
  const std::size_t losses = 1 + 4 + 1;  // after drew, replica and type
  bytes.replace(losses, count.size(), count);
  EXPECT_EQ(error_of([&] { Ending::decode(bytes); }),
            "c10::Error: the end of a step says that it has " +
                std::to_string(huge) + " losses, for which its " +
                std::to_string(bytes.size()) +
                " bytes are not the right number; run the same gpipe on all "
                "ranks");
  // The number of metrics: after two losses with their count, weighted, the
  // sum with its type, and the weight.
  bytes = ending().encode();
  bytes.replace(losses + 8 + 16 + 1 + 9 + 8, count.size(), count);
  EXPECT_NE(error_of([&] { Ending::decode(bytes); }), "");
}

}  // namespace
}  // namespace gpipe::internal
