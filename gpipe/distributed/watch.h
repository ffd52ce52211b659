// Each rank tells each other that it is there, and what has gone wrong.
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

#include "gpipe/distributed/error.h"

namespace gpipe {

// Has a connection of its own to every other rank. On each waits a receive, so
// that the system tells at once when the other one's process has ended; and
// beats come in, so that one that stands still is noticed.
//
// Threads: any.
class Watch {
 public:
  // `on_failure` is called, on a thread of the watch, for each failure that is
  // heard of or noticed. It must not call anything here but announce().
  // `pause`: between two beats; 0 for a part of the timeout.
  Watch(c10::intrusive_ptr<c10d::Backend> group, int rank, int size,
        std::chrono::milliseconds timeout,
        std::function<void(RankFailure)> on_failure,
        std::chrono::milliseconds pause = std::chrono::milliseconds(0));

  // Says goodbye and waits until the others have, for `patience` at most.
  void leave(std::chrono::milliseconds patience);

  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Tells the others. Does not wait for them.
  void announce(const RankFailure& failure);

  bool has_left(int rank) const { return peers_[rank]->left; }

  // Whom this rank waits for, -1: nobody, from the next beat on, for others to
  // know. Gives what it was.
  int set_waits_for(int rank) { return waits_for_.exchange(rank); }
  // The same, if it has been `from` so far.
  void set_waits_for(int from, int to) {
    waits_for_.compare_exchange_strong(from, to);
  }
  // The rank that `rank` waits for, or that this one waits for, and so on, as
  // the last beats said: one that waits for nobody. `rank` itself, if they wait
  // in a circle. A guess, since beats are late.
  int end_of_waiting(int rank) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    std::atomic<bool> left{false};
    std::atomic<bool> gone{false};  // nothing more will come
    std::atomic<Clock::rep> heard{0};
    std::atomic<int> unanswered{0};  // beats since then
    std::atomic<int> waits_for{-1};
    std::mutex mutex;
    c10::intrusive_ptr<c10d::Work> receive;  // in progress
    bool closing = false;                    // no new receive
    // In progress, perhaps.
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

}  // namespace gpipe
