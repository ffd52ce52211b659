#include "gpipe/schedule/microbatches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace gpipe {
namespace {

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
