#include "gpipe/schedule/microbatches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpipe {
namespace {

TEST(MicrobatchesTest, AreCountedUpToTheLargestNumberOfRows) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();  // odd
  EXPECT_EQ(rows_per_microbatch(kMost, 2), kMost / 2 + 1);
  EXPECT_EQ(num_microbatches(kMost, 2), 2);
  EXPECT_EQ(rows_per_microbatch(kMost, kMost), 1);
  EXPECT_EQ(num_microbatches(kMost, kMost), kMost);
  EXPECT_EQ(rows_per_microbatch(1, kMost), 1);
  EXPECT_EQ(num_microbatches(1, kMost), 1);
  EXPECT_EQ(num_microbatches(5, 4), 3);
}

TEST(ParseCheckpointTest, ReadsWhatToStringReturns) {
  for (const auto& [text, mode] :
       {std::pair<std::string, Checkpoint>{"always", Checkpoint::kAlways},
        {"except_last", Checkpoint::kExceptLast},
        {"never", Checkpoint::kNever}}) {
    EXPECT_EQ(parse_checkpoint(text), mode);
    EXPECT_EQ(to_string(mode), text);
  }
}

TEST(ParseCheckpointTest, AnyOtherTextIsRefusedWithTheModes) {
  EXPECT_THAT([] { parse_checkpoint("sometimes"); },
              ::testing::ThrowsMessage<std::invalid_argument>(
                  "--checkpoint=sometimes: must be never, except_last or "
                  "always"));
}

}  // namespace
}  // namespace gpipe
