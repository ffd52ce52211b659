#include "gpipe/distributed/world/gloo_group.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <future>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "gpipe/distributed/testing/ranks.h"

namespace gpipe::internal {
namespace {

using std::chrono::milliseconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int kGlooTag = 7;
constexpr milliseconds kTimeout{60000};

class GlooGroupTest : public ::testing::Test {
 protected:
  c10::intrusive_ptr<GlooGroup> rank(int number, int size = 2) {
    return c10::make_intrusive<GlooGroup>(store_, device_, number, size,
                                          kTimeout);
  }
  static c10::intrusive_ptr<c10d::Work> send(GlooGroup& group, int to,
                                             at::Tensor tensor) {
    std::vector<at::Tensor> list{std::move(tensor)};
    return group.send(list, to, kGlooTag);
  }
  static at::Tensor receive(GlooGroup& group, int from, int64_t bytes) {
    std::vector<at::Tensor> list{at::zeros({bytes}, at::kByte)};
    EXPECT_TRUE(group.recv(list, from, kGlooTag)->wait(kTimeout));
    return list[0];
  }
  static at::Tensor bytes_of(int64_t size, int value) {
    return at::full({size}, value, at::kByte);
  }

  const c10::intrusive_ptr<c10d::Store> store_ =
      c10::make_intrusive<c10d::HashStore>();
  const GlooDevice device_ = gloo_device("127.0.0.1");
};

TEST_F(GlooGroupTest, ExchangesMessagesWithEachRankApart) {
  // One group per rank, all on one device.
  std::vector<c10::intrusive_ptr<GlooGroup>> ranks;
  for (int k = 0; k < 3; ++k) ranks.push_back(rank(k, 3));
  ranks[0]->connect({1, 2});
  ranks[1]->connect({0});
  ranks[2]->connect({0});
  const auto first = send(*ranks[0], 1, bytes_of(8, 1));
  const auto second = send(*ranks[0], 2, bytes_of(8, 2));
  EXPECT_TRUE(receive(*ranks[2], 0, 8).equal(bytes_of(8, 2)));
  EXPECT_TRUE(receive(*ranks[1], 0, 8).equal(bytes_of(8, 1)));
  EXPECT_TRUE(first->wait(kTimeout) && second->wait(kTimeout));
}

TEST_F(GlooGroupTest, SendsWhatIsDropped) {
  const auto from = rank(0), to = rank(1);
  from->connect({1});
  to->connect({0});
  constexpr int kMessages = 20;
  for (int k = 0; k < kMessages; ++k) send(*from, 1, bytes_of(4096, k));
  for (int k = 0; k < kMessages; ++k) {
    EXPECT_TRUE(receive(*to, 0, 4096).equal(bytes_of(4096, k))) << k;
  }
}

TEST_F(GlooGroupTest, EndsAWaitForAConnectionWhenItGivesUp) {
  const auto lonely = rank(0);
  auto waits =
      std::async(std::launch::async, [&] { send(*lonely, 1, bytes_of(1, 1)); });
  lonely->stop_connecting();
  // The thread that connects may notice it before the one that waits.
  EXPECT_THAT([&] { waits.get(); },
              ThrowsMessage<std::exception>(
                  AnyOf(HasSubstr("rank 1"), HasSubstr("it was aborted"))));
}

TEST_F(GlooGroupTest, MakesNoConnectionAfterTheLastOneButKeepsThose) {
  const auto first = rank(0, 3), second = rank(1, 3);
  first->connect({1});
  second->connect({0});
  const auto one = send(*first, 1, bytes_of(1, 1));
  receive(*second, 0, 1);
  EXPECT_TRUE(one->wait(kTimeout));
  first->stop_connecting();
  const auto two = send(*first, 1, bytes_of(1, 2));
  EXPECT_TRUE(receive(*second, 0, 1).equal(bytes_of(1, 2)));
  EXPECT_TRUE(two->wait(kTimeout));
  EXPECT_THAT([&] { send(*first, 2, bytes_of(1, 1)); },
              ThrowsMessage<std::runtime_error>(
                  HasSubstr("rank 0 has no connection to rank 2")));
}

// The end of a group with lazy connections may block forever.
TEST_F(GlooGroupTest, IsNotLazyWhateverTheEnvironmentSays) {
  ::setenv("TORCH_GLOO_LAZY_INIT", "1", 1);
  const GlooDevice device = gloo_device("127.0.0.1");
  for (int round = 0; round < 20; ++round) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const auto first =
        c10::make_intrusive<GlooGroup>(store, device, 0, 2, kTimeout);
    const auto second =
        c10::make_intrusive<GlooGroup>(store, device, 1, 2, kTimeout);
    first->connect({1});
    second->connect({0});
    const auto sent = send(*first, 1, bytes_of(1, 1));
    receive(*second, 0, 1);
    EXPECT_TRUE(sent->wait(kTimeout));
  }
  ::unsetenv("TORCH_GLOO_LAZY_INIT");
}

// A rank that has ended while its neighbours connect does not keep them.
TEST_F(GlooGroupTest, EndsWhileItConnects) {
  for (int round = 0; round < 20; ++round) rank(0, 3)->connect({1, 2});
}

TEST_F(GlooGroupTest, ListensOnTheGivenInterfaceOnly) {
  const auto listeners = testing::listeners_of(std::to_string(::getpid()));
  EXPECT_FALSE(listeners.empty());
  for (const auto& each : listeners) {
    EXPECT_EQ(each.address, "0100007F");  // 127.0.0.1
  }
}

TEST_F(GlooGroupTest, RefusesARankThatIsNoOther) {
  const auto group = rank(1);
  for (const int peer : {-1, 1, 2}) {
    EXPECT_THAT(
        [&] { send(*group, peer, bytes_of(1, 1)); },
        ThrowsMessage<c10::ValueError>(HasSubstr(
            "cannot exchange messages with rank " + std::to_string(peer))));
  }
}

}  // namespace
}  // namespace gpipe::internal
