#include "gpipe/distributed/world/communicator.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "gpipe/distributed/testing/two_worlds.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using testing::TwoWorlds;

TEST(Tags, DifferBetweenPurposesAndChannels) {
  std::set<int> all;
  for (int channel = 0; channel < 100; ++channel) {
    const Tags tags(channel);
    all.insert({tags.header, tags.payload, tags.words, tags.sums});
  }
  EXPECT_EQ(all.size(), 400u);
}

TEST(Tags, OfPayloadsDifferByLengthAndDtype) {
  const Tags tags(3), other(4);
  std::set<int> all;
  for (int64_t bytes = 0; bytes < 100; ++bytes) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const int tag = tags.payload_of(bytes, type);
      EXPECT_GE(tag, 0);
      EXPECT_EQ(tag, Tags(3).payload_of(bytes, type));
      EXPECT_NE(tag, other.payload_of(bytes, type));
      all.insert(tag);
    }
  }
  EXPECT_EQ(all.size(), 200u);
  EXPECT_EQ(all.count(tags.header), 0u);
}

// Two ends of a transfer. The abort of one end returns only when the other end
// is aborted, as that of a communicator between two devices may.
struct Ends {
  // Only a test that fails waits so long.
  static constexpr std::chrono::seconds kLimit{10};

  std::mutex mutex;
  std::condition_variable changed;
  int aborted = 0;
  std::atomic<int> alone{0};  // aborts that did not find the other end
};

class End final : public c10d::Work {
 public:
  explicit End(Ends& ends) : ends_(ends) {}

  bool wait(std::chrono::milliseconds timeout) override {
    std::unique_lock<std::mutex> lock(ends_.mutex);
    if (ends_.changed.wait_for(lock, timeout, [this] { return aborted_; })) {
      throw std::runtime_error("it was aborted");
    }
    return false;
  }

  void abort() override {
    std::unique_lock<std::mutex> lock(ends_.mutex);
    aborted_ = true;
    ++ends_.aborted;
    ends_.changed.notify_all();
    if (!ends_.changed.wait_for(lock, Ends::kLimit,
                                [this] { return ends_.aborted >= 2; })) {
      ++ends_.alone;
    }
    throw std::runtime_error("it is broken");  // which stops nobody
  }

 private:
  Ends& ends_;
  bool aborted_ = false;
};

TEST(CommunicatorTest, AnnouncesAFailureBeforeItAbortsTransfers) {
  Ends ends;
  std::promise<void> called;
  {
    TwoWorlds worlds;
    const int throwing = worlds.first->on_failure(
        [] { throw std::runtime_error("a callback fails"); });
    const int next =
        worlds.first->on_failure([&called] { called.set_value(); });
    const auto wait = [&ends](Communicator& world, int peer) {
      const auto work = c10::make_intrusive<End>(ends);
      return error_of(
          [&] { world.wait(work, peer, [] { return "an activation"; }); });
    };
    auto first =
        std::async(std::launch::async, [&] { return wait(*worlds.first, 1); });
    auto second =
        std::async(std::launch::async, [&] { return wait(*worlds.second, 0); });
    worlds.first->fail({Fault::kFailed, 0, 0, "a step", "a layer has thrown"});
    EXPECT_NE(first.get().find("a layer has thrown"), std::string::npos);
    EXPECT_NE(second.get().find("a layer has thrown"), std::string::npos);
    called.get_future().wait();
    worlds.first->forget(throwing);
    worlds.first->forget(next);
  }
  EXPECT_EQ(ends.aborted, 2);
  EXPECT_EQ(ends.alone, 0);
}

TEST(CommunicatorTest, IsTheTransportBetweenHosts) {
  TwoWorlds worlds;
  EXPECT_EQ(worlds.first->device(), c10::Device(c10::kCPU));
  const auto action = [] { return std::string("the test"); };
  for (int64_t size : {1, 100000}) {
    const at::Tensor sent = at::full({size}, 7, at::kByte);
    const at::Tensor received = at::zeros({size}, at::kByte);
    const auto receive = worlds.second->receive(received, 0, 5, action);
    const auto send = worlds.first->send(sent, 1, 5, action);
    worlds.first->wait(send, 1, action);
    worlds.second->wait(receive, 0, action);
    EXPECT_TRUE(at::equal(received, sent));
  }
}

TEST(CommunicatorTest, RefusesABackendThatThereIsNot) {
  WorldOptions options;
  options.backend = "mpi";
  EXPECT_THAT([&] { Communicator::connect(options); },
              ThrowsMessage<c10::ValueError>(
                  HasSubstr("WorldOptions::backend is 'mpi', but")));
}

}  // namespace
}  // namespace gpipe::internal
