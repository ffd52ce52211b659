// Ranks of one start find each other in a store that has served earlier ones.
#include "gpipe/distributed/world/starts.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <optional>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace gpipe::internal {
namespace {

using Clock = std::chrono::steady_clock;

c10::intrusive_ptr<c10d::Store> make_store() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

Clock::time_point soon() { return Clock::now() + std::chrono::seconds(30); }

TEST(StartsTest, RanksThatComeBeforeAndAfterRankZeroGetItsNumber) {
  const auto store = make_store();
  for (int64_t start = 1; start <= 3; ++start) {
    Starts early(store, 1), zero(store, 0), late(store, 2);
    auto asked =
        std::async(std::launch::async, [&] { return early.number(soon()); });
    EXPECT_EQ(zero.number(soon()), start);
    auto asked_late =
        std::async(std::launch::async, [&] { return late.number(soon()); });
    const auto is_waiting = [](auto& each) {
      return each.wait_for(std::chrono::milliseconds(1)) !=
             std::future_status::ready;
    };
    while (is_waiting(asked) || is_waiting(asked_late)) zero.answer();
    EXPECT_EQ(asked.get(), start);
    EXPECT_EQ(asked_late.get(), start);
    EXPECT_EQ(zero.number(soon()), start);
    EXPECT_EQ(early.number(Clock::now()), start);
  }
}

TEST(StartsTest, ARankThatHasGivenUpDoesNotChangeTheNextStart) {
  const auto store = make_store();
  Starts gone(store, 1);
  EXPECT_EQ(gone.number(Clock::now()), std::nullopt);
  Starts zero(store, 0), one(store, 1);
  EXPECT_EQ(zero.number(soon()), 1);
  auto asked =
      std::async(std::launch::async, [&] { return one.number(soon()); });
  while (asked.wait_for(std::chrono::milliseconds(1)) !=
         std::future_status::ready) {
    zero.answer();
  }
  EXPECT_EQ(asked.get(), 1);
}

}  // namespace
}  // namespace gpipe::internal
