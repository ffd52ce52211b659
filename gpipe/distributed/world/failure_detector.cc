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
#include "gpipe/distributed/world/heartbeat_peers.h"

namespace gpipe::internal {
namespace {

// The tag of all messages.
constexpr int kTag = 1;
// The size of all messages. It is fixed, because a message of another length
// than expected breaks the connection.
constexpr int64_t kBytes = 4096;
// The most heartbeats sent to a rank that does not answer. A rank that stands
// still receives nothing, and what is sent to it is kept.
constexpr int kUnanswered = 16;
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

// Returns the message that says that `rank` leaves.
at::Tensor goodbye_of(int rank) {
  std::string text;
  put(text, static_cast<int32_t>(rank));
  return message_of(Note::kGoodbye, text);
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
      on_failure_(std::move(on_failure)),
      has_left_(size),
      waits_(rank, size) {
  for (const int peer : heartbeat_peers(rank, size)) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->rank = peer;
    peers_.back()->heard = Clock::now().time_since_epoch().count();
  }
  for (const auto& peer : peers_) {
    peer->listener = std::thread([this, &each = *peer] { listen(each); });
  }
  beater_ = std::thread([this] { beat(); });
}

void FailureDetector::listen(Peer& peer) {
  std::string closed;  // the reason, if the connection was closed
  while (true) {
    std::vector<at::Tensor> message{at::empty({kBytes}, at::kByte)};
    c10::intrusive_ptr<c10d::Work> work;
    try {
      {
        std::lock_guard<std::mutex> lock(peer.mutex);
        if (peer.closing) break;
        work = peer.receive = group_->recv(message, peer.rank, kTag);
      }
      if (!work->wait()) break;  // aborted, because this rank leaves
    } catch (const std::exception& error) {
      closed = reason_of(error);
      break;
    }
    peer.heard = Clock::now().time_since_epoch().count();
    peer.unanswered = 0;
    if (handle({static_cast<const char*>(message[0].const_data_ptr()), kBytes},
               peer.rank)) {
      break;
    }
  }
  peer.gone = true;
  bool ending;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending = ending_;
  }
  if (!closed.empty() && !ending) {
    on_failure_({Fault::kDied, peer.rank, rank_, "", closed});
  }
  changed_.notify_all();
}

bool FailureDetector::handle(const std::string& message, int from) {
  std::size_t at = 1;
  switch (static_cast<Note>(message[0])) {
    case Note::kBeat:
      waits_.merge(take_text(message, at));
      return false;
    case Note::kFailure:
      on_failure_(decode_failure(message.substr(1)));
      return false;
    case Note::kGoodbye: {
      const auto who = take<int32_t>(message, at);
      if (who < 0 || who >= static_cast<int>(has_left_.size())) return false;
      if (!has_left_[who].exchange(true)) {
        send_to_peers(goodbye_of(who), /*except=*/from);
      }
      return who == from;
    }
  }
  return false;
}

void FailureDetector::beat() {
  std::unique_lock<std::mutex> lock(mutex_);
  auto last = Clock::now();
  while (!changed_.wait_for(lock, pause_, [this] { return ending_; })) {
    lock.unlock();
    std::string waits;
    put_text(waits, waits_.encode(kBytes - 1 - sizeof(uint64_t)));
    const at::Tensor message = message_of(Note::kBeat, waits);
    for (const auto& peer : peers_) {
      if (peer->unanswered >= kUnanswered) continue;
      ++peer->unanswered;
      send(*peer, message);
    }
    const auto now = Clock::now();
    // If this process was stopped itself, silence of the others means nothing.
    find_frozen(now, now - last < timeout_ / 2);
    last = now;
    lock.lock();
  }
}

void FailureDetector::find_frozen(Clock::time_point now, bool was_here) {
  for (const auto& peer : peers_) {
    if (is_done(*peer)) continue;
    const auto silence = std::chrono::duration_cast<std::chrono::milliseconds>(
        now.time_since_epoch() - Clock::duration(peer->heard));
    if (!was_here) {
      peer->heard = now.time_since_epoch().count();
    } else if (silence > timeout_) {
      on_failure_({Fault::kFrozen, peer->rank, rank_, "",
                   "nothing was heard of it for " +
                       std::to_string(silence.count()) + " ms"});
    }
  }
}

void FailureDetector::send(Peer& peer, const at::Tensor& message) {
  if (is_done(peer)) return;
  try {
    std::vector<at::Tensor> tensors{message};
    group_->send(tensors, peer.rank, kTag);  // keeps the message until it left
  } catch (const std::exception&) {
    // The listener reports the broken connection.
  }
}

void FailureDetector::send_to_peers(const at::Tensor& message, int except) {
  for (const auto& peer : peers_) {
    if (peer->rank != except) send(*peer, message);
  }
}

void FailureDetector::announce(const RankFailure& failure) {
  send_to_peers(message_of(Note::kFailure, encode_failure(failure)));
}

void FailureDetector::leave(std::chrono::milliseconds patience) {
  has_left_[rank_] = true;  // others need not tell this rank
  send_to_peers(goodbye_of(rank_));
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, patience, [this] {
    return std::all_of(peers_.begin(), peers_.end(),
                       [&](const auto& peer) { return is_done(*peer); });
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
