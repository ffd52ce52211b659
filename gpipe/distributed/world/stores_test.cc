#include "gpipe/distributed/world/stores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <optional>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "gpipe/distributed/testing/two_worlds.h"

namespace gpipe::internal {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class InterruptibleStoreTest : public ::testing::Test {
 protected:
  c10::intrusive_ptr<c10d::Store> store_with(milliseconds timeout) {
    return c10::make_intrusive<InterruptibleStore>(inner_, stopped_, timeout);
  }

  const c10::intrusive_ptr<c10d::HashStore> inner_ =
      c10::make_intrusive<c10d::HashStore>();
  const std::shared_ptr<std::atomic<bool>> stopped_ =
      std::make_shared<std::atomic<bool>>(false);
  const c10::intrusive_ptr<c10d::Store> store_ =
      store_with(milliseconds(60000));
};

TEST_F(InterruptibleStoreTest, WaitsForAKeyThatIsSetLater) {
  auto value =
      std::async(std::launch::async, [&] { return store_->get("key"); });
  inner_->set("key", std::vector<uint8_t>{1, 2});
  EXPECT_THAT(value.get(), ElementsAre(1, 2));
}

TEST_F(InterruptibleStoreTest, EndsWaitsWhenItIsStopped) {
  auto value = std::async(std::launch::async,
                          [&] { return store_->clone()->get("key"); });
  *stopped_ = true;
  EXPECT_THAT([&] { value.get(); },
              ThrowsMessage<std::runtime_error>(HasSubstr("aborted")));
  // Values that are there can still be read.
  inner_->set("other", std::vector<uint8_t>{3});
  EXPECT_THAT(store_->get("other"), ElementsAre(3));
}

TEST_F(InterruptibleStoreTest, EndsWaitsAtTheTimeout) {
  const auto impatient = store_with(milliseconds(1));
  EXPECT_THAT([&] { impatient->get("key"); },
              ThrowsMessage<std::runtime_error>(HasSubstr("'key'")));
}

TEST_F(InterruptibleStoreTest, DoesTheRestAsTheInnerStore) {
  store_->set("key", std::vector<uint8_t>{1});
  EXPECT_THAT(store_->compareSet("key", std::vector<uint8_t>{1},
                                 std::vector<uint8_t>{2}),
              ElementsAre(2));
  EXPECT_EQ(store_->add("count", 3), 3);
  EXPECT_TRUE(store_->check({"key", "count"}));
  EXPECT_EQ(store_->getNumKeys(), inner_->getNumKeys());
  EXPECT_TRUE(store_->deleteKey("key"));
  EXPECT_FALSE(inner_->check({"key"}));
}

using Clock = std::chrono::steady_clock;

Clock::time_point soon() { return Clock::now() + std::chrono::seconds(30); }

TEST(StartsTest, RanksThatComeBeforeAndAfterRankZeroGetItsNumber) {
  const auto store = testing::serve_store();
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
  const auto store = testing::serve_store();
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
