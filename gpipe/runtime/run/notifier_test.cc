#include "gpipe/runtime/run/notifier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace gpipe::internal {
namespace {

TEST(Notifier, TestsTheConditionNoMoreOftenThanNeeded) {
  Notifier notifier;
  for (const int spins : {0, 2, 9}) {
    int tests = 0;
    notifier.wait([&] { return ++tests == spins + 1; }, spins);
    EXPECT_EQ(tests, spins + 1);  // `spins` times, and once before it sleeps
    tests = 0;
    notifier.wait([&] { return ++tests > 0; }, spins);
    EXPECT_EQ(tests, 1);
  }
}

TEST(Notifier, WakesAThreadThatSleepsToTestAgain) {
  Notifier notifier;
  std::atomic<int> value{0}, seen{0};
  std::thread waiting([&] {
    for (int k = 1; k <= 100; ++k) {
      notifier.wait([&] { return value >= k; }, /*spins=*/k % 2);
      seen = k;
    }
  });
  for (int k = 1; k <= 100; ++k) {
    value = k;
    notifier.notify();
  }
  waiting.join();
  EXPECT_EQ(seen, 100);
}

TEST(Notifier, GoesOnSleepingWhileTheConditionIsFalse) {
  Notifier notifier;
  std::atomic<int> tests{0};
  std::atomic<bool> done{false};
  std::thread waiting([&] {
    notifier.wait(
        [&] {
          // Read before the test is counted: a test that the other thread has
          // seen has read `false`.
          const bool is_done = done;
          ++tests;
          return is_done;
        },
        /*spins=*/0);
  });
  while (tests == 0) std::this_thread::yield();
  notifier.notify();
  while (tests < 2) std::this_thread::yield();
  done = true;
  notifier.notify();
  waiting.join();
  EXPECT_GE(tests, 3);
}

}  // namespace
}  // namespace gpipe::internal
