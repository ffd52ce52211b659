// A target of its own, because it forks.
#include "gpipe/runtime/device/origin.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace gpipe::internal {
namespace {

TEST(Origin, KnowsAForkAfterItWasMade) {
  const Origin origin;
  EXPECT_FALSE(origin.forked());
  // The statement runs in a fork.
  EXPECT_EXIT(_exit(origin.forked() ? 7 : 8), ::testing::ExitedWithCode(7), "");
  EXPECT_FALSE(origin.forked());
}

TEST(Origin, OfAForkIsNotForked) {
  const Origin origin;
  EXPECT_EXIT(_exit(Origin().forked() ? 7 : 8), ::testing::ExitedWithCode(8),
              "");
}

}  // namespace
}  // namespace gpipe::internal
