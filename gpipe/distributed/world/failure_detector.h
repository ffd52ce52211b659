// Heartbeats between ranks, and what they carry: reports of failures, and which
// rank waits for which.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "gpipe/distributed/error.h"

namespace gpipe::internal {

// For each rank, the rank that it waits for. Ranks exchange what they know with
// their heartbeats, and the newest statement of a rank about itself counts.
// Thread-safe.
class Waits {
 public:
  Waits(int rank, int size) : rank_(rank), known_(size) {}

  // Declares that this rank can do nothing before `rank` has done something;
  // -1: that it waits for no rank. Returns the previous one.
  int set_own(int rank);
  // Sets it to `to` only if the current value is `from`.
  void set_own(int from, int to);

  // Returns at most `bytes` bytes with what this rank knows. If that is not
  // enough for all ranks, the next call goes on where this one has ended.
  std::string encode(std::size_t bytes);
  // Takes over what is newer in a result of encode(). Ignores what is not
  // possible.
  void merge(const std::string& bytes);

  // Follows the chain of ranks that wait for each other, from `rank` on.
  // Returns its last rank, which waits for none; `rank` if they wait in a
  // circle. The result is a guess, because it rests on the last heartbeats.
  int end_of_chain(int rank) const;

 private:
  struct Known {
    int64_t version = 0;  // 0: nothing is known
    int32_t waits_for = -1;
  };

  const int rank_;
  mutable std::mutex mutex_;
  std::vector<Known> known_;  // by rank
  std::size_t next_ = 0;      // the rank with which encode() begins
};

// The failure detector of one rank. It has its own connection to each of its
// peers (topology.h). A receive is always posted on each connection, so
// that the operating system reports at once when the other process has ended.
// Heartbeats arrive on it, so that a rank that stands still is noticed. A rank
// passes on to its peers what it learns of other ranks.
//
// Thread-safe.
class FailureDetector {
 public:
  // Starts the threads: one for each peer, and one that sends heartbeats.
  //
  // `group`: a c10d group of all ranks that nothing else uses. It keeps what is
  // sent until that has left.
  // `timeout`: a peer that sends nothing for this long is reported as frozen.
  // `on_failure`: called for each failure that is received or noticed, on a
  // thread of the failure detector. It must call nothing of this class but
  // announce(), and it must call that for the first failure.
  // `pause`: between two heartbeats; 0 means timeout / 8, between 1 ms and 500
  // ms.
  FailureDetector(
      c10::intrusive_ptr<c10d::Backend> group, int rank, int size,
      std::chrono::milliseconds timeout,
      std::function<void(RankFailure)> on_failure,
      std::chrono::milliseconds pause = std::chrono::milliseconds(0));

  // Tells the others that this rank leaves. Blocks until its peers have left,
  // too, and what it told them is sent, at most for `patience`. May be called
  // once.
  void leave(std::chrono::milliseconds patience);

  ~FailureDetector();
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;

  // Sends `failure` to the peers. Does not wait until they have received it.
  void announce(const RankFailure& failure);

  // Returns whether `rank` has announced that it leaves.
  bool has_left(int rank) const { return has_left_[rank]; }

  // Returns which rank waits for which. The others learn a change with the next
  // heartbeats, one for each rank on the way.
  Waits& waits() { return waits_; }

 private:
  using Clock = std::chrono::steady_clock;
  // The connection to one peer.
  struct Peer {
    int rank = 0;
    std::atomic<bool> gone{false};  // its listener has ended
    // When the last message arrived (Clock's epoch).
    std::atomic<Clock::rep> heard{0};
    std::atomic<int> unanswered{0};  // heartbeats sent since `heard`
    std::mutex mutex;
    c10::intrusive_ptr<c10d::Work> receive;  // the posted receive
    c10::intrusive_ptr<c10d::Work> goodbye;  // of leave(), unless it is gone
    bool closing = false;                    // post no new receive
    std::thread listener;
  };

  bool is_done(const Peer& peer) const {
    return peer.gone || has_left_[peer.rank];
  }
  // Ends and joins the threads.
  void stop();
  void listen(Peer& peer);
  void handle(const std::string& message, int from);
  void beat();
  // Reports peers that have been silent for too long. `was_here`: this process
  // was not stopped itself.
  void find_frozen(Clock::time_point now, bool was_here);
  // Returns whether it was set before.
  bool set_has_left(int rank);
  // Returns null if the connection is broken.
  c10::intrusive_ptr<c10d::Work> post(Peer& peer, const at::Tensor& message);
  // Sends it unless the peer has left.
  void send(Peer& peer, const at::Tensor& message);
  void send_to_peers(const at::Tensor& message, int except = -1);

  const c10::intrusive_ptr<c10d::Backend> group_;
  const int rank_;
  const std::chrono::milliseconds timeout_, pause_;
  const std::function<void(RankFailure)> on_failure_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::atomic<bool>> has_left_;  // by rank
  Waits waits_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread beater_;
};

}  // namespace gpipe::internal
