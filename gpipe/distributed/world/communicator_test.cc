#include "gpipe/distributed/world/communicator.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <future>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "gpipe/base/processes.h"
#include "gpipe/distributed/testing/two_worlds.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;
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
  // A channel whose number has more bits than the tag has for it.
  for (int64_t bytes = 0; bytes < 100; ++bytes) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      all.insert(Tags(3 + 8192).payload_of(bytes, type));
    }
  }
  EXPECT_EQ(all.size(), 400u);
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

TEST(CommunicatorTest, ItsStoreHasTheWholeTimeout) {
  TwoWorlds worlds;
  for (const auto& world : {worlds.first, worlds.second}) {
    EXPECT_EQ(world->store().getTimeout(), world->options().timeout);
  }
}

TEST(CommunicatorTest, AConnectionThatGlooHasGivenUpIsATimeout) {
  const auto action = [] { return std::string("the test"); };
  for (const bool is_posted : {true, false}) {  // before Gloo gives up
    TwoWorlds worlds;
    const at::Tensor bytes = at::zeros({8}, at::kByte);
    const auto post = [&] {
      return worlds.first->receive(bytes, 1, 5, action);
    };
    const auto late = post();
    const auto posted = is_posted ? post() : nullptr;
    EXPECT_ANY_THROW(late->wait(milliseconds(1)));
    EXPECT_THAT(error_of([&] {
                  worlds.first->wait(is_posted ? posted : post(), 1, action);
                }),
                HasSubstr("rank 1 has not answered in time: "));
  }
}

// A transfer that fails by `error`.
class FailingWork final : public c10d::Work {
 public:
  explicit FailingWork(std::exception_ptr error) : error_(std::move(error)) {}
  bool wait(milliseconds /*timeout*/) override {
    std::rethrow_exception(error_);
  }

 private:
  const std::exception_ptr error_;
};

TEST(CommunicatorTest, AnErrorOfThisRankIsNotThatOfItsPeer) {
  TwoWorlds worlds;
  const auto action = [] { return std::string("the test"); };
  const auto begun = [&](const std::exception_ptr& error) {
    return error_of([&] {
      worlds.first->begin(1, action, [&]() -> Communicator::Work {
        std::rethrow_exception(error);
      });
    });
  };
  const auto awaited = [&](const std::exception_ptr& error) {
    return error_of([&] {
      worlds.first->wait(c10::make_intrusive<FailingWork>(error), 1, action);
    });
  };
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  const std::pair<std::exception_ptr, std::string> own[] = {
      {std::make_exception_ptr(c10::Error(here, "CUDA error")),
       "c10::Error: CUDA error"},
      {std::make_exception_ptr(c10::OutOfMemoryError(here, "it is full")),
       "c10::OutOfMemoryError: it is full"},
      {std::make_exception_ptr(
           std::system_error(EAGAIN, std::generic_category(), "a thread")),
       "std::system_error: a thread: Resource temporarily unavailable"},
      {std::make_exception_ptr(std::bad_alloc()),
       "std::bad_alloc: std::bad_alloc"}};
  for (const auto& [error, text] : own) {
    EXPECT_EQ(begun(error), text);
    EXPECT_EQ(awaited(error), text);
  }
  EXPECT_FALSE(worlds.first->failure());
  EXPECT_THAT(awaited(std::make_exception_ptr(
                  c10::DistBackendError(here, "an error of NCCL"))),
              HasSubstr("rank 1 has died: an error of NCCL"));
  // After a failure, that is what everybody hears of.
  EXPECT_THAT(begun(own[0].first), HasSubstr("rank 1 has died"));
  EXPECT_THAT(awaited(own[0].first), HasSubstr("rank 1 has died"));
}

TEST(CommunicatorTest, RefusesOptionsThatAreOutOfRange) {
  const auto error = [](auto change) {
    WorldOptions options;
    change(options);
    return error_of([&] { Communicator::connect(options); });
  };
  EXPECT_EQ(error([](auto& options) { options.rank = 1; }),
            "c10::ValueError: rank 1 is not one of 1 ranks: ranks count from "
            "0");
  EXPECT_EQ(error([](auto& options) { options.local_rank = -1; }),
            "c10::ValueError: local_rank is -1: the ranks of a machine count "
            "from 0");
  EXPECT_THAT(error([](auto& options) { options.port = 65536; }),
              HasSubstr("the port must be in 1..65535 (port: 65536)"));
  EXPECT_THAT(error([](auto& options) { options.timeout = milliseconds(0); }),
              HasSubstr("timeouts must be positive (timeout: 0 ms"));
}

TEST(CommunicatorTest, APortIsFreeAfterARendezvousThatHasFailed) {
  WorldOptions options;
  options.size = 2;
  options.port = free_port();
  options.timeout = milliseconds(200);
  for (int times = 0; times < 3; ++times) {
    EXPECT_THAT(error_of([&] { Communicator::connect(options); }),
                HasSubstr("rank 1 has not answered in time: 1 of 2 ranks came"))
        << times;
  }
}

// Returns the part of `store` that the first world uses.
c10::intrusive_ptr<c10d::Store> first_world(
    const c10::intrusive_ptr<c10d::TCPStore>& store) {
  return c10::make_intrusive<c10d::PrefixStore>("gpipe/world//1", store);
}

// Writes to the store of a world of two what rank 1 does when it comes after
// rank 0.
void come_as_rank_1(const c10::intrusive_ptr<c10d::Store>& world) {
  world->add("rank/1", 1);
  world->add("count", 1);
  world->set("all", "yes");
}

TEST(CommunicatorTest, APortIsFreeAfterARankThatCouldNotBeReached) {
  WorldOptions options;
  options.size = 2;
  options.port = free_port();
  options.timeout = milliseconds(3000);
  auto rank_0 = std::async(std::launch::async, [&options] {
    return error_of([&] { Communicator::connect(options); });
  });
  c10d::TCPStoreOptions place;
  place.port = static_cast<uint16_t>(options.port);
  place.waitWorkers = false;
  come_as_rank_1(
      first_world(c10::make_intrusive<c10d::TCPStore>(options.address, place)));
  EXPECT_THAT(rank_0.get(), HasSubstr("rank 0 got no connection with it: "));
  EXPECT_NO_THROW(testing::serve_store(options.port));
}

TEST(CommunicatorTest, FindsARankZeroThatListensLate) {
  const ReservedPort reserved;
  WorldOptions options;
  options.size = 2;
  options.port = reserved.port();
  options.timeout = milliseconds(5000);
  WorldOptions other = options;
  other.rank = 1;
  auto rank_1 = std::async(std::launch::async,
                           [&other] { Communicator::connect(other); });
  std::this_thread::sleep_for(options.timeout * 3 / 4);
  EXPECT_NO_THROW(Communicator::connect(options));
  EXPECT_NO_THROW(rank_1.get());
}

TEST(CommunicatorTest, AsksAgainIfAServedStoreHasStartedAgain) {
  auto store = testing::serve_store();
  WorldOptions options;
  options.size = 2;
  options.port = store->getPort();
  options.store_is_served = true;
  options.timeout = milliseconds(20000);
  WorldOptions other = options;
  other.rank = 1;
  auto rank_1 = std::async(std::launch::async, [&other] {
    return error_of([&] { Communicator::connect(other); });
  });
  while (!store->check({"gpipe/session//gpipe/questions"})) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  store.reset();
  store = testing::serve_store(options.port);
  EXPECT_NO_THROW(Communicator::connect(options));
  EXPECT_EQ(rank_1.get(), "");
}

// Connects as one of two ranks to a store that the test serves, as a launcher
// does.
class ConnectingTest : public ::testing::Test {
 protected:
  WorldOptions options() const {
    WorldOptions options;
    options.size = 2;
    options.port = store_->getPort();
    options.store_is_served = true;
    options.timeout = milliseconds(2000);
    return options;
  }
  // Waits until rank 0 has come.
  void wait_for_rank_0() const {
    while (!world()->check({"count"})) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  c10::intrusive_ptr<c10d::Store> world() const { return first_world(store_); }

  c10::intrusive_ptr<c10d::TCPStore> store_ = testing::serve_store();
  std::future<std::string> rank_0_ =
      std::async(std::launch::async, [options = options()] {
        return error_of([&] { Communicator::connect(options); });
      });
};

TEST_F(ConnectingTest, AStoreThatIsGoneIsAPeerError) {
  wait_for_rank_0();
  const std::string place = c10::str("127.0.0.1:", store_->getPort());
  store_.reset();
  EXPECT_THAT(
      rank_0_.get(),
      AllOf(HasSubstr("gpipe::PeerError: rank 0 has died: the store at " +
                      place + " is gone: "),
            HasSubstr("[in the rendezvous]")));
}

TEST_F(ConnectingTest, ARankThatComesAgainIsNotToldOfAFailedWorld) {
  wait_for_rank_0();
  const std::string token = "0123456789abcdef";
  const auto session =
      c10::make_intrusive<c10d::PrefixStore>("gpipe/session/", store_);
  world()->set("failure", encode_failure({Fault::kFailed, 1, 1, "", "a test"}));
  session->append("gpipe/questions", {token.begin(), token.end()});
  EXPECT_THAT(rank_0_.get(), HasSubstr("rank 1 has failed: a test"));
  EXPECT_FALSE(session->check({"gpipe/answer/" + token}));
}

TEST_F(ConnectingTest, ARankThatComesAndThenDiesIsNamed) {
  wait_for_rank_0();
  come_as_rank_1(world());
  EXPECT_THAT(rank_0_.get(),
              HasSubstr("gpipe::PeerError: rank 1 has not answered in time: "
                        "rank 0 got no connection with it: "));
}

TEST_F(ConnectingTest, ARankThatCannotListenIsToldToAllAtOnce) {
  WorldOptions other = options();
  other.rank = 1;
  other.own_address = "192.0.2.1";  // of no machine (RFC 5737)
  const std::string what =
      "gpipe::PeerError: rank 1 has failed: it cannot listen at its own "
      "address: ";
  EXPECT_THAT(error_of([&] { Communicator::connect(other); }),
              AllOf(HasSubstr(what), HasSubstr("WorldOptions::own_address")));
  EXPECT_THAT(rank_0_.get(), HasSubstr(what));
}

TEST(CommunicatorTest, RefusesABackendThatThereIsNot) {
  WorldOptions options;
  options.backend = "mpi";
  EXPECT_THAT([&] { Communicator::connect(options); },
              ThrowsMessage<c10::ValueError>(
                  AllOf(HasSubstr("WorldOptions::backend is 'mpi', but"),
                        HasSubstr("this program has 'gloo', so give 'gloo'"),
                        Not(HasSubstr("give 'gloo' or")))));
}

}  // namespace
}  // namespace gpipe::internal
