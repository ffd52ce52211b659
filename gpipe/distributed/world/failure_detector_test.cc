#include "gpipe/distributed/world/failure_detector.h"

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/rendezvous.h"

namespace gpipe::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::RankProgramEntry;
using testing::Ranks;
using testing::world_options;

constexpr std::size_t kPlenty = 4096;

TEST(WaitsTest, FollowAChainToItsEnd) {
  Waits waits(0, 4);
  EXPECT_EQ(waits.end_of_chain(0), 0);
  EXPECT_EQ(waits.set_own(2), -1);
  Waits other(2, 4);
  other.set_own(3);
  waits.merge(other.encode(kPlenty));
  EXPECT_EQ(waits.end_of_chain(0), 3);
  EXPECT_EQ(waits.end_of_chain(1), 1);
}

TEST(WaitsTest, ACircleHasNoEnd) {
  Waits waits(0, 2), other(1, 2);
  waits.set_own(1);
  other.set_own(0);
  waits.merge(other.encode(kPlenty));
  EXPECT_EQ(waits.end_of_chain(1), 1);
}

TEST(WaitsTest, OnlyTheExpectedValueIsReplaced) {
  Waits waits(0, 3);
  waits.set_own(1);
  waits.set_own(2, -1);
  EXPECT_EQ(waits.end_of_chain(0), 1);
  waits.set_own(1, -1);
  EXPECT_EQ(waits.end_of_chain(0), 0);
}

TEST(WaitsTest, TravelThroughOtherRanksAndTheNewestCounts) {
  Waits first(0, 3), middle(1, 3), last(2, 3);
  last.set_own(1);
  const std::string old = last.encode(kPlenty);
  last.set_own(-1);
  middle.merge(last.encode(kPlenty));
  first.merge(middle.encode(kPlenty));
  first.merge(old);
  EXPECT_EQ(first.end_of_chain(2), 2);
  last.set_own(0);
  middle.merge(last.encode(kPlenty));
  first.merge(middle.encode(kPlenty));
  EXPECT_EQ(first.end_of_chain(2), 0);
}

// 16 bytes per rank; its own rank is always among them.
TEST(WaitsTest, ThatDoNotFitTakeTurns) {
  constexpr int kRanks = 10;
  Waits from(0, kRanks), to(1, kRanks);
  for (int rank = 1; rank < kRanks; ++rank) {
    Waits each(rank, kRanks);
    each.set_own(0);
    from.merge(each.encode(kPlenty));
  }
  for (int message = 0; message < 3; ++message) {
    const std::string bytes = from.encode(64);
    EXPECT_LE(bytes.size(), 64u);
    to.merge(bytes);
  }
  int known = 0;
  for (int rank = 2; rank < kRanks; ++rank) {
    known += to.end_of_chain(rank) == 0;
  }
  EXPECT_EQ(known, 8);
}

TEST(WaitsTest, WhatIsNotPossibleIsIgnored) {
  Waits waits(0, 2);
  std::string bytes;
  for (const int32_t rank : {-1, 2, 1}) {
    put(bytes, rank);
    put(bytes, int64_t{9});
    put(bytes, int32_t{7});
  }
  waits.merge(bytes + "rest");
  EXPECT_EQ(waits.end_of_chain(1), 1);
}

constexpr milliseconds kPause{5};

// Rank 1 is stopped, continues, sends a failure and waits for the answer.
const RankProgramEntry kPauses("pauses", [] {
  auto options = world_options();
  options.backend = "gloo";
  const Rendezvous meeting = meet(options);
  std::atomic<bool> heard{false};
  FailureDetector detector(
      meeting.control, options.rank, options.size, seconds(60),
      [&](const RankFailure& failure) {
        // The other rank may have left by then.
        if (!heard) std::cout << failure.what << std::endl;
        heard = true;
      },
      kPause);
  const auto wait = [&] {
    const auto deadline = std::chrono::steady_clock::now() + seconds(20);
    while (!heard && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    if (!heard) std::cout << "nothing came" << std::endl;
    return heard.load();
  };
  const int rank = options.rank;
  const RankFailure word{Fault::kFailed, rank, rank, "",
                         "word of rank " + std::to_string(rank)};
  if (rank == 1) {
    std::cout << "stands still" << std::endl;
    ::raise(SIGSTOP);
    detector.announce(word);
    wait();
  } else if (wait()) {
    detector.announce(word);
  }
  detector.leave(seconds(5));
  return 0;
});

TEST(FailureDetector, APauseOfAnyNumberOfBeatsIsNoHarm) {
  Ranks running("pauses", 2);
  ASSERT_TRUE(running.wait_for_line(1, "stands still"));
  std::this_thread::sleep_for(100 * kPause);  // the test needs this delay
  running.signal(1, SIGCONT);
  const auto results = running.wait(seconds(60));
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(results[rank].ended && results[rank].exit.ok())
        << results[rank].err;
  }
  EXPECT_EQ(results[0].out, "word of rank 1\n");
  EXPECT_EQ(results[1].out, "stands still\nword of rank 0\n");
}

// Messages between ranks that are threads of this process. Those of the ways in
// `held`, which is set before there are threads, do not arrive.
struct Mail {
  using Way = std::pair<int, int>;  // from, to

  std::mutex mutex;
  std::condition_variable changed;
  std::map<Way, std::deque<at::Tensor>> sent;
  std::set<Way> held;
  // The ways on which nothing leaves, set before there are threads. As with
  // Gloo, whose queue is full, not even the end of the peer ends the wait.
  std::set<Way> full;
  std::set<int> ended;  // the ranks that have closed their connections
};

// A send or a receive.
class MailWork : public c10d::Work {
 public:
  explicit MailWork(std::shared_ptr<Mail> mail) : mail_(std::move(mail)) {}

  bool wait(milliseconds) override {
    std::unique_lock<std::mutex> lock(mail_->mutex);
    mail_->changed.wait(lock, [&] { return is_aborted_ || can_end(); });
    if (!is_aborted_) end();
    return !is_aborted_;
  }

  void abort() override {
    std::lock_guard<std::mutex> lock(mail_->mutex);
    is_aborted_ = true;
    mail_->changed.notify_all();
  }

 protected:
  // Both are called with the mutex.
  virtual bool can_end() const = 0;
  virtual void end() {}

  const std::shared_ptr<Mail> mail_;

 private:
  bool is_aborted_ = false;
};

class Sent final : public MailWork {
 public:
  Sent(std::shared_ptr<Mail> mail, bool has_left)
      : MailWork(std::move(mail)), has_left_(has_left) {}

 private:
  bool can_end() const override { return has_left_; }

  const bool has_left_;
};

class Receive final : public MailWork {
 public:
  Receive(std::shared_ptr<Mail> mail, Mail::Way way, at::Tensor message)
      : MailWork(std::move(mail)), way_(way), message_(std::move(message)) {}

 private:
  bool can_end() const override {
    return mail_->sent[way_].empty() ? mail_->ended.contains(way_.first)
                                     : !mail_->held.contains(way_);
  }

  void end() override {
    auto& sent = mail_->sent[way_];
    if (sent.empty()) throw std::runtime_error("connection closed by peer");
    message_.copy_(sent.front());
    sent.pop_front();
  }

  const Mail::Way way_;
  at::Tensor message_;
};

class MailGroup final : public c10d::Backend {
 public:
  MailGroup(std::shared_ptr<Mail> mail, int rank, int size)
      : c10d::Backend(rank, size), mail_(std::move(mail)) {}

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to,
                                      int) override {
    std::lock_guard<std::mutex> lock(mail_->mutex);
    const bool leaves = !mail_->full.contains({rank_, to});
    if (leaves) mail_->sent[{rank_, to}].push_back(tensors[0]);
    mail_->changed.notify_all();
    return c10::make_intrusive<Sent>(mail_, leaves);
  }

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors,
                                      int from, int) override {
    return c10::make_intrusive<Receive>(mail_, Mail::Way{from, rank_},
                                        tensors[0]);
  }

 private:
  const std::shared_ptr<Mail> mail_;
};

// Nothing but the arrival of messages may end a wait: without one, this test
// does not end.
constexpr std::chrono::hours kNever{1};

// Three ranks that are threads of this process. Their failures fail the test.
class ThreeRanks {
 public:
  explicit ThreeRanks(std::shared_ptr<Mail> mail) : mail_(std::move(mail)) {
    for (int rank = 0; rank < 3; ++rank) {
      detectors_.push_back(std::make_unique<FailureDetector>(
          c10::make_intrusive<MailGroup>(mail_, rank, 3), rank, 3, kNever,
          [](const RankFailure& failure) { ADD_FAILURE() << failure.what; }));
    }
  }

  std::future<void> leave(int rank) {
    return std::async(std::launch::async,
                      [this, rank] { detectors_[rank]->leave(kNever); });
  }

  void wait_until_known(int rank, int at) const {
    while (!detectors_[at]->has_left(rank)) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  void end(int rank) {
    detectors_[rank].reset();
    const std::lock_guard<std::mutex> lock(mail_->mutex);
    mail_->ended.insert(rank);
    mail_->changed.notify_all();
  }

 private:
  const std::shared_ptr<Mail> mail_;
  std::vector<std::unique_ptr<FailureDetector>> detectors_;
};

// Rank 1 leaves, and the other two learn it in another order: rank 0 from rank
// 2, before rank 1's own word arrives.
TEST(FailureDetector, RanksThatLeaveTogetherDoNotWaitForEachOther) {
  const auto mail = std::make_shared<Mail>();
  mail->held = {{1, 0}};
  ThreeRanks ranks(mail);
  const auto first = ranks.leave(1);
  ranks.wait_until_known(1, /*at=*/0);
  const auto second = ranks.leave(0);
  ranks.wait_until_known(0, /*at=*/2);
  const auto third = ranks.leave(2);
  second.wait();  // what rank 1 says is still held back
  third.wait();
  first.wait();
}

// Rank 1 has learned from rank 2 that rank 0 leaves, and ends before rank 0's
// own word could leave.
TEST(FailureDetector, AWordToARankThatHasEndedIsNotWaitedFor) {
  const auto mail = std::make_shared<Mail>();
  mail->full = {{0, 1}};
  ThreeRanks ranks(mail);
  const auto first = ranks.leave(0);
  ranks.wait_until_known(0, /*at=*/1);
  const auto second = ranks.leave(1), third = ranks.leave(2);
  second.wait();
  ranks.end(1);
  third.wait();
  first.wait();
}

}  // namespace
}  // namespace gpipe::internal
