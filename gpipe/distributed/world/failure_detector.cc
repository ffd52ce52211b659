#include "gpipe/distributed/world/failure_detector.h"

#include <ATen/Functions.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "gpipe/base/threads.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/topology.h"

namespace gpipe::internal {
namespace {

constexpr std::size_t kEntry =
    sizeof(int32_t) + sizeof(int64_t) + sizeof(int32_t);

}  // namespace

int Waits::set_own(int rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(known_[rank_].waits_for, rank);
}

void Waits::set_own(int from, int to) {
  const std::lock_guard<std::mutex> lock(mutex_);
  int32_t& own = known_[rank_].waits_for;
  if (own == from) own = to;
}

std::string Waits::encode(std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++known_[rank_].version;
  std::string text;
  const auto add = [&](std::size_t rank) {
    const Known& known = known_[rank];
    text += pack(static_cast<int32_t>(rank), known.version, known.waits_for);
  };
  add(rank_);  // always, because only this rank knows
  for (std::size_t k = 0; k < known_.size(); ++k) {
    if (text.size() + kEntry > bytes) break;
    const std::size_t rank = next_;
    next_ = (next_ + 1) % known_.size();
    const bool is_own = rank == static_cast<std::size_t>(rank_);
    if (!is_own && known_[rank].version > 0) add(rank);
  }
  return text;
}

void Waits::merge(const std::string& bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int size = static_cast<int>(known_.size());
  for (std::size_t at = 0; at + kEntry <= bytes.size();) {
    int32_t rank = 0;
    Known known;
    unpack(bytes, at, rank, known.version, known.waits_for);
    if (rank < 0 || rank >= size || rank == rank_) continue;
    if (known.waits_for < -1 || known.waits_for >= size) continue;
    if (known.version > known_[rank].version) known_[rank] = known;
  }
}

int Waits::end_of_chain(int rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int end = rank;
  for (std::size_t steps = 0; steps < known_.size(); ++steps) {
    const int next = known_[end].waits_for;
    if (next < 0) return end;
    end = next;
  }
  return rank;
}

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
  return message_of(Note::kGoodbye, pack(static_cast<int32_t>(rank)));
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
  try {
    for (const auto& peer : peers_) {
      peer->listener =
          background_thread([this, &each = *peer] { listen(each); });
    }
    beater_ = background_thread([this] { beat(); });
  } catch (...) {
    stop();
    throw;
  }
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
    handle({static_cast<const char*>(message[0].const_data_ptr()), kBytes},
           peer.rank);
  }
  {
    std::lock_guard<std::mutex> lock(peer.mutex);
    peer.gone = true;
    // Gloo does not tell a send in its queue that the connection is closed.
    if (peer.goodbye) peer.goodbye->abort();
  }
  bool ending;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending = ending_;
  }
  // A rank that has left closes its connections.
  if (!closed.empty() && !ending && !has_left_[peer.rank]) {
    on_failure_({Fault::kDied, peer.rank, rank_, "", closed});
  }
  changed_.notify_all();
}

void FailureDetector::handle(const std::string& message, int from) {
  std::size_t at = 1;
  switch (static_cast<Note>(message[0])) {
    case Note::kBeat:
      return waits_.merge(take_text(message, at));
    case Note::kFailure:
      return on_failure_(decode_failure(message.substr(1)));
    case Note::kGoodbye: {
      const auto who = take<int32_t>(message, at);
      if (who < 0 || who >= static_cast<int>(has_left_.size())) return;
      if (!set_has_left(who)) send_to_peers(goodbye_of(who), /*except=*/from);
    }
  }
}

bool FailureDetector::set_has_left(int rank) {
  const bool before = has_left_[rank].exchange(true);
  // With the mutex, so that leave() is not just before its wait.
  const std::lock_guard<std::mutex> lock(mutex_);
  changed_.notify_all();
  return before;
}

void FailureDetector::beat() {
  std::unique_lock<std::mutex> lock(mutex_);
  auto last = Clock::now();
  while (!changed_.wait_for(lock, pause_, [this] { return ending_; })) {
    lock.unlock();
    const at::Tensor message = message_of(
        Note::kBeat, pack(waits_.encode(kBytes - 1 - sizeof(uint64_t))));
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
      on_failure_(
          {Fault::kFrozen, peer->rank, rank_, "",
           c10::str("nothing was heard of it for ", silence.count(),
                    " ms; raise WorldOptions::heartbeat_timeout if a process "
                    "may stand still for longer")});
    }
  }
}

c10::intrusive_ptr<c10d::Work> FailureDetector::post(
    Peer& peer, const at::Tensor& message) {
  try {
    std::vector<at::Tensor> tensors{message};
    return group_->send(tensors, peer.rank, kTag);
  } catch (const std::exception&) {
    return nullptr;  // the listener reports the broken connection
  }
}

void FailureDetector::send(Peer& peer, const at::Tensor& message) {
  if (!is_done(peer)) post(peer, message);
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
  const auto deadline = Clock::now() + patience;
  set_has_left(rank_);  // others need not tell this rank
  for (const auto& peer : peers_) {
    // Also to those that have said that they leave: they wait for it.
    auto goodbye = post(*peer, goodbye_of(rank_));
    std::lock_guard<std::mutex> lock(peer->mutex);
    if (!peer->gone) peer->goodbye = std::move(goodbye);
  }
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, deadline, [this] {
      return std::all_of(peers_.begin(), peers_.end(),
                         [&](const auto& peer) { return is_done(*peer); });
    });
  }
  // What has not left when the connections are closed never arrives.
  for (const auto& peer : peers_) {
    if (!peer->goodbye) continue;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - Clock::now());
    try {
      peer->goodbye->wait(std::max(left, std::chrono::milliseconds(1)));
    } catch (const std::exception&) {
      // The other end has closed the connection, or is frozen.
    }
  }
}

FailureDetector::~FailureDetector() { stop(); }

void FailureDetector::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (beater_.joinable()) beater_.join();
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
