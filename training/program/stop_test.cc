#include "training/program/stop.h"

#include <gtest/gtest.h>

#include <csignal>

namespace gpipe::train_program {
namespace {

TEST(StopTest, TheFirstSignalIsNoted) {
  for (const int number : {SIGINT, SIGTERM}) {
    const StopSignals signals;
    EXPECT_EQ(signals.received(), 0);
    raise(number);
    EXPECT_EQ(signals.received(), number);
  }
}

TEST(StopDeathTest, TheSecondOneEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StopSignals signals;
        raise(SIGINT);
        raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopTest, AfterwardsSignalsAreWhatTheyWere) {
  static volatile std::sig_atomic_t own = 0;
  const auto before = std::signal(SIGINT, [](int) { own = 1; });
  { const StopSignals signals; }
  raise(SIGINT);
  EXPECT_EQ(own, 1);
  std::signal(SIGINT, before);
}

}  // namespace
}  // namespace gpipe::train_program
