#include "gpipe/base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

namespace gpipe::internal {
namespace {

using ::testing::ExitedWithCode;

// Each test runs in a process of its own.
class ExitGateDeathTest : public ::testing::Test {
 protected:
  ExitGateDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// A thread that works all the time. The destructor tells it to end and waits
// for it.
class Working {
 public:
  Working()
      : thread_(background_thread([this] {
          for (;;) {
            const WorkScope work(passes_);
            if (stop_) return;
            works_ = true;
          }
        })) {
    while (!works_) std::this_thread::yield();
  }
  ~Working() {
    stop_ = true;
    let_pass_at_exit(passes_);
    thread_.join();
  }

 private:
  std::atomic<bool> passes_{false}, stop_{false}, works_{false};
  std::thread thread_;
};

TEST_F(ExitGateDeathTest, WhatAStaticDestructorWaitsForPasses) {
  EXPECT_EXIT(
      {
        static Working working;
        close_gate_at_exit();
        std::exit(7);
      },
      ExitedWithCode(7), "");
}

TEST_F(ExitGateDeathTest, ALeakedThreadStopsAtTheGate) {
  EXPECT_EXIT(
      {
        new Working;
        close_gate_at_exit();
        std::exit(7);
      },
      ExitedWithCode(7), "");
}

TEST_F(ExitGateDeathTest, WorkThatDoesNotEndEndsTheProcess) {
  EXPECT_EXIT(
      {
        std::atomic<bool> works{false};
        background_thread([&] {
          const WorkScope work;
          works = true;
          for (;;) std::this_thread::yield();
        }).detach();
        while (!works) std::this_thread::yield();
        close_gate_at_exit();
        std::exit(7);
      },
      ExitedWithCode(7), "");
}

TEST_F(ExitGateDeathTest, WorkThatCallsExitIsNotWaitedFor) {
  EXPECT_EXIT(
      {
        close_gate_at_exit();
        const WorkScope work;
        std::exit(7);
      },
      ExitedWithCode(7), "");
}

}  // namespace
}  // namespace gpipe::internal
