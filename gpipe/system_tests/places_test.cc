// The sleeps are necessary, because time is what these tests are about.
#include "gpipe/system_tests/places.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace gpipe::faults {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(WatchdogDeathTest, EndsWhatHangsAndSaysWhere) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        Watchdog watchdog(seconds(1), [] { return "in a long sleep\n"; });
        std::this_thread::sleep_for(seconds(60));
      },
      "hangs: nothing for 1 s\nin a long sleep");
}

TEST(WatchdogTest, LeavesAloneWhatFeedsIt) {
  Watchdog watchdog(seconds(1), [] { return "should not be called"; });
  for (int k = 0; k < 30; ++k) {
    watchdog.feed();
    std::this_thread::sleep_for(milliseconds(100));
  }
}

}  // namespace
}  // namespace gpipe::faults
