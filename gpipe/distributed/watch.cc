#include "gpipe/distributed/watch.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "gpipe/distributed/throw.h"

namespace gpipe {
namespace {

constexpr int kTag = 1;
// The same for all, since a message of another length ends the process that
// gets it (Gloo).
constexpr int64_t kBytes = 4096;
constexpr std::size_t kTextBytes = 1500;
// A message is sent, and its memory free, long before as many others are.
constexpr std::size_t kSendsKept = 32;
constexpr int kBeatsPerTimeout = 8;
constexpr auto kLongestBeat = std::chrono::milliseconds(500);

enum class Note : uint8_t { kBeat = 1, kFailure, kGoodbye };

// Laid out by hand: ranks may be of different builds.
class Writer {
 public:
  explicit Writer(Note note) : bytes_(at::zeros({kBytes}, at::kByte)) {
    number(static_cast<uint32_t>(note));
  }
  void number(uint32_t value) {
    for (int k = 0; k < 4; ++k) put(static_cast<uint8_t>(value >> (8 * k)));
  }
  void text(const std::string& value) {
    const std::size_t size = std::min(value.size(), kTextBytes);
    number(static_cast<uint32_t>(size));
    for (std::size_t k = 0; k < size; ++k) put(static_cast<uint8_t>(value[k]));
  }
  at::Tensor take() { return std::move(bytes_); }

 private:
  void put(uint8_t value) { bytes_.mutable_data_ptr<uint8_t>()[at_++] = value; }

  at::Tensor bytes_;
  std::size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(const at::Tensor& bytes)
      : bytes_(bytes.const_data_ptr<uint8_t>()) {}
  uint32_t number() {
    uint32_t value = 0;
    for (int k = 0; k < 4; ++k) value |= uint32_t{get()} << (8 * k);
    return value;
  }
  std::string text() {
    std::string value(std::min<std::size_t>(number(), kTextBytes), '\0');
    for (char& each : value) each = static_cast<char>(get());
    return value;
  }

 private:
  uint8_t get() {
    return at_ < static_cast<std::size_t>(kBytes) ? bytes_[at_++] : 0;
  }

  const uint8_t* bytes_;
  std::size_t at_ = 0;
};

at::Tensor encode(const RankFailure& failure) {
  Writer writer(Note::kFailure);
  writer.number(static_cast<uint32_t>(failure.fault));
  writer.number(static_cast<uint32_t>(failure.rank));
  writer.number(static_cast<uint32_t>(failure.reporter));
  writer.text(failure.action);
  writer.text(failure.what);
  return writer.take();
}

RankFailure decode(Reader reader) {
  RankFailure failure;
  const uint32_t fault = reader.number();
  failure.fault = fault <= static_cast<uint32_t>(Fault::kLeft)
                      ? static_cast<Fault>(fault)
                      : Fault::kFailed;
  failure.rank = static_cast<int>(reader.number());
  failure.reporter = static_cast<int>(reader.number());
  failure.action = reader.text();
  failure.what = reader.text();
  return failure;
}

}  // namespace

Watch::Watch(c10::intrusive_ptr<c10d::Backend> group, int rank, int size,
             std::chrono::milliseconds timeout,
             std::function<void(RankFailure)> on_failure)
    : group_(std::move(group)),
      rank_(rank),
      timeout_(timeout),
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

void Watch::listen(int from) {
  Peer& peer = *peers_[from];
  RankFailure failure;
  failure.rank = from;
  failure.reporter = rank_;
  while (true) {
    std::vector<at::Tensor> message{at::empty({kBytes}, at::kByte)};
    c10::intrusive_ptr<c10d::Work> work;
    try {
      {
        std::lock_guard<std::mutex> lock(peer.mutex);
        if (peer.closing) break;
        work = peer.receive = group_->recv(message, from, kTag);
      }
      if (!work->wait()) break;  // aborted: this rank is leaving
    } catch (const std::exception& error) {
      failure.fault = Fault::kDied;
      failure.what = reason_of(error);
      break;
    }
    peer.heard = Clock::now().time_since_epoch().count();
    Reader reader(message[0]);
    const auto note = static_cast<Note>(reader.number());
    if (note == Note::kGoodbye) {
      peer.left = true;
      break;
    }
    if (note == Note::kFailure) on_failure_(decode(reader));
  }
  peer.gone = true;
  bool ending;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending = ending_;
  }
  if (!failure.what.empty() && !ending) on_failure_(failure);
  changed_.notify_all();
}

void Watch::beat() {
  const auto pause = std::min<std::chrono::milliseconds>(
      kLongestBeat, timeout_ / kBeatsPerTimeout);
  const at::Tensor message = Writer(Note::kBeat).take();
  std::unique_lock<std::mutex> lock(mutex_);
  auto last = Clock::now();
  while (!changed_.wait_for(lock, pause, [this] { return ending_; })) {
    lock.unlock();
    send_to_all(message);
    const auto now = Clock::now();
    // What has been stopped itself knows nothing of the others.
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
        RankFailure failure;
        failure.fault = Fault::kFrozen;
        failure.rank = from;
        failure.reporter = rank_;
        failure.what = "nothing was heard of it for " +
                       std::to_string(silence.count()) + " ms";
        on_failure_(failure);
      }
    }
    lock.lock();
  }
}

void Watch::send(int to, const at::Tensor& message) {
  Peer& peer = *peers_[to];
  if (peer.left || peer.gone) return;
  std::lock_guard<std::mutex> lock(peer.mutex);
  try {
    std::vector<at::Tensor> tensors{message};
    peer.sends.emplace_back(message, group_->send(tensors, to, kTag));
    if (peer.sends.size() > kSendsKept) peer.sends.pop_front();
  } catch (const std::exception&) {
    // Its listener knows.
  }
}

void Watch::send_to_all(const at::Tensor& message) {
  for (int to = 0; to < static_cast<int>(peers_.size()); ++to) {
    if (to != rank_) send(to, message);
  }
}

void Watch::announce(const RankFailure& failure) {
  send_to_all(encode(failure));
}

void Watch::leave(std::chrono::milliseconds patience) {
  send_to_all(Writer(Note::kGoodbye).take());
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, patience, [this] {
    return std::all_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
      return peer == peers_[rank_] || peer->left || peer->gone;
    });
  });
}

Watch::~Watch() {
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

}  // namespace gpipe
