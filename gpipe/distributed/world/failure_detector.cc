#include "gpipe/distributed/world/failure_detector.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/failure_conversion.h"

namespace gpipe::internal {
namespace {

// The tag of all messages.
constexpr int kTag = 1;
// The size of all messages. It is fixed, because Gloo ends a process that
// receives a message of an unexpected length.
constexpr int64_t kBytes = 4096;
// The most heartbeats sent to a rank that does not answer. A rank that stands
// still receives nothing, and its sends must be kept: Gloo holds a send by a
// weak pointer and never gets past one that is gone.
constexpr int kUnanswered = 16;
// How many sends are kept. Older ones are complete, since no more messages can
// be pending than the heartbeats above, a failure and the note of leaving.
constexpr std::size_t kSendsKept = 2 * kUnanswered;
constexpr int kBeatsPerTimeout = 8;
constexpr auto kShortestBeat = std::chrono::milliseconds(1);
constexpr auto kLongestBeat = std::chrono::milliseconds(500);

enum class Note : uint8_t { kBeat = 1, kFailure, kGoodbye };

static_assert(1 + kFailureBytes <= kBytes);

at::Tensor message_of(Note note, const std::string& text = "") {
  at::Tensor message = at::zeros({kBytes}, at::kByte);
  auto* const bytes = message.mutable_data_ptr<uint8_t>();
  bytes[0] = static_cast<uint8_t>(note);
  std::memcpy(bytes + 1, text.data(), text.size());
  return message;
}

}  // namespace

FailureDetector::FailureDetector(c10::intrusive_ptr<c10d::Backend> group,
                                 int rank, int size,
                                 std::chrono::milliseconds timeout,
                                 std::function<void(RankFailure)> on_failure,
                                 std::chrono::milliseconds pause)
    : group_(std::move(group)),
      rank_(rank),
      timeout_(timeout),
      pause_(pause.count() > 0 ? pause
                               : std::clamp<std::chrono::milliseconds>(
                                     timeout / kBeatsPerTimeout, kShortestBeat,
                                     kLongestBeat)),
      on_failure_(std::move(on_failure)) {
  for (int peer = 0; peer < size; ++peer) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->heard = Clock::now().time_since_epoch().count();
  }
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank_) continue;
    peers_[peer]->listener = std::thread([this, peer] { listen(peer); });
  }
  beater_ = std::thread([this] { beat(); });
}

void FailureDetector::listen(int from) {
  Peer& peer = *peers_[from];
  std::string closed;  // the reason, if the connection was closed
  while (true) {
    std::vector<at::Tensor> message{at::empty({kBytes}, at::kByte)};
    c10::intrusive_ptr<c10d::Work> work;
    try {
      {
        std::lock_guard<std::mutex> lock(peer.mutex);
        if (peer.closing) break;
        work = peer.receive = group_->recv(message, from, kTag);
      }
      if (!work->wait()) break;  // aborted, because this rank leaves
    } catch (const std::exception& error) {
      closed = reason_of(error);
      break;
    }
    peer.heard = Clock::now().time_since_epoch().count();
    peer.unanswered = 0;
    const std::string bytes(
        static_cast<const char*>(message[0].const_data_ptr()), kBytes);
    const auto note = static_cast<Note>(bytes[0]);
    if (note == Note::kGoodbye) {
      peer.left = true;
      break;
    }
    if (note == Note::kFailure) on_failure_(decode_failure(bytes.substr(1)));
    std::size_t at = 1;
    if (note == Note::kBeat) peer.waits_for = take<int32_t>(bytes, at);
  }
  peer.gone = true;
  bool ending;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending = ending_;
  }
  if (!closed.empty() && !ending) {
    on_failure_({Fault::kDied, from, rank_, "", closed});
  }
  changed_.notify_all();
}

void FailureDetector::beat() {
  std::unique_lock<std::mutex> lock(mutex_);
  auto last = Clock::now();
  while (!changed_.wait_for(lock, pause_, [this] { return ending_; })) {
    lock.unlock();
    std::string waits_for;
    put(waits_for, static_cast<int32_t>(waits_for_));
    const at::Tensor message = message_of(Note::kBeat, waits_for);
    for (int to = 0; to < static_cast<int>(peers_.size()); ++to) {
      if (to == rank_ || peers_[to]->unanswered >= kUnanswered) continue;
      ++peers_[to]->unanswered;
      send(to, message);
    }
    const auto now = Clock::now();
    // If this process was stopped itself, silence of the others means nothing.
    const bool was_here = now - last < timeout_ / 2;
    last = now;
    for (int from = 0; from < static_cast<int>(peers_.size()); ++from) {
      Peer& peer = *peers_[from];
      if (from == rank_ || peer.left || peer.gone) continue;
      const auto silence =
          std::chrono::duration_cast<std::chrono::milliseconds>(
              now.time_since_epoch() - Clock::duration(peer.heard));
      if (!was_here) {
        peer.heard = now.time_since_epoch().count();
      } else if (silence > timeout_) {
        on_failure_({Fault::kFrozen, from, rank_, "",
                     "nothing was heard of it for " +
                         std::to_string(silence.count()) + " ms"});
      }
    }
    lock.lock();
  }
}

void FailureDetector::send(int to, const at::Tensor& message) {
  Peer& peer = *peers_[to];
  if (peer.left || peer.gone) return;
  std::lock_guard<std::mutex> lock(peer.mutex);
  try {
    std::vector<at::Tensor> tensors{message};
    peer.sends.emplace_back(message, group_->send(tensors, to, kTag));
    if (peer.sends.size() > kSendsKept) peer.sends.pop_front();
  } catch (const std::exception&) {
    // The listener reports the broken connection.
  }
}

void FailureDetector::send_to_all(const at::Tensor& message) {
  for (int to = 0; to < static_cast<int>(peers_.size()); ++to) {
    if (to != rank_) send(to, message);
  }
}

int FailureDetector::end_of_waiting(int rank) const {
  const int size = static_cast<int>(peers_.size());
  int end = rank;
  for (int steps = 0; steps < size; ++steps) {
    const int next = end == rank_ ? waits_for_ : peers_[end]->waits_for;
    if (next < 0 || next >= size) return end;
    end = next;
  }
  return rank;
}

void FailureDetector::announce(const RankFailure& failure) {
  send_to_all(message_of(Note::kFailure, encode_failure(failure)));
}

void FailureDetector::leave(std::chrono::milliseconds patience) {
  send_to_all(message_of(Note::kGoodbye));
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, patience, [this] {
    return std::all_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
      return peer == peers_[rank_] || peer->left || peer->gone;
    });
  });
}

FailureDetector::~FailureDetector() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  beater_.join();
  for (auto& peer : peers_) {
    {
      std::lock_guard<std::mutex> lock(peer->mutex);
      peer->closing = true;
      if (peer->receive) peer->receive->abort();
    }
    if (peer->listener.joinable()) peer->listener.join();
  }
}

}  // namespace gpipe::internal
