// Heartbeats and reports of failures between ranks.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "gpipe/distributed/world/error.h"

namespace gpipe::internal {

// The failure detector of one rank. It has its own connection to every other
// rank. A receive is always posted on each connection, so that the operating
// system reports at once when the other process has ended. Heartbeats arrive on
// it, so that a rank that stands still is noticed.
//
// Thread-safe.
class FailureDetector {
 public:
  // Starts the threads: one for each other rank, and one that sends heartbeats.
  //
  // `group`: a c10d group of all ranks that nothing else uses.
  // `timeout`: a rank that sends nothing for this long is reported as frozen.
  // `on_failure`: called for each failure that is received or noticed, on a
  // thread of the failure detector. It must call nothing of this class but
  // announce().
  // `pause`: between two heartbeats; 0 means timeout / 8, between 1 ms and 500
  // ms.
  FailureDetector(
      c10::intrusive_ptr<c10d::Backend> group, int rank, int size,
      std::chrono::milliseconds timeout,
      std::function<void(RankFailure)> on_failure,
      std::chrono::milliseconds pause = std::chrono::milliseconds(0));

  // Tells the others that this rank leaves. Blocks until all others have left,
  // too, at most for `patience`.
  void leave(std::chrono::milliseconds patience);

  ~FailureDetector();
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;

  // Sends `failure` to all other ranks. Does not wait until they have received
  // it.
  void announce(const RankFailure& failure);

  // Returns whether `rank` has announced that it leaves.
  bool has_left(int rank) const { return peers_[rank]->left; }

  // Sets the rank that this rank waits for, or -1 for none; returns the
  // previous one. The other ranks learn it with the next heartbeat.
  int set_waits_for(int rank) { return waits_for_.exchange(rank); }
  // Sets it to `to` only if the current value is `from`.
  void set_waits_for(int from, int to) {
    waits_for_.compare_exchange_strong(from, to);
  }
  // Follows the chain of ranks that wait for each other, from `rank` on.
  // Returns its last rank, which waits for none; `rank` if they wait in a
  // circle. The result is a guess, because it rests on the last heartbeats.
  int end_of_waiting(int rank) const;

 private:
  using Clock = std::chrono::steady_clock;
  // The connection to one other rank.
  struct Peer {
    std::atomic<bool> left{false};
    std::atomic<bool> gone{false};  // its listener has ended
    // When the last message arrived (Clock's epoch).
    std::atomic<Clock::rep> heard{0};
    std::atomic<int> unanswered{0};  // heartbeats sent since `heard`
    std::atomic<int> waits_for{-1};
    std::mutex mutex;
    c10::intrusive_ptr<c10d::Work> receive;  // the posted receive
    bool closing = false;                    // post no new receive
    // The last sends with their messages; some may not be complete.
    std::deque<std::pair<at::Tensor, c10::intrusive_ptr<c10d::Work>>> sends;
    std::thread listener;
  };

  void listen(int from);
  void beat();
  void send(int to, const at::Tensor& message);
  void send_to_all(const at::Tensor& message);

  const c10::intrusive_ptr<c10d::Backend> group_;
  const int rank_;
  const std::chrono::milliseconds timeout_, pause_;
  const std::function<void(RankFailure)> on_failure_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::atomic<int> waits_for_{-1};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread beater_;
};

}  // namespace gpipe::internal
