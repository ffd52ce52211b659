#include "gpipe/distributed/links/acceptor.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpipe::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Status = TlsSocket::Status;

// How long a greeting may take.
constexpr auto kPatience = std::chrono::seconds(5);
// How many connections are accepted before the others are looked after.
constexpr int kAtOnce = 16;

}  // namespace

struct Acceptor::Pending {
  Pending(TlsSocket socket, const Hello& own)
      : greeting(std::move(socket), own) {}

  Greeting greeting;
  Status needs = Status::kNeedsRead;
  const Clock::time_point deadline = Clock::now() + kPatience;
};

uint64_t random_token() {
  uint64_t token = 0;
  while (token == 0) {
    if (::RAND_bytes(reinterpret_cast<unsigned char*>(&token), sizeof token) !=
        1) {
      throw std::runtime_error("no random numbers: " + take_tls_error());
    }
  }
  return token;
}

Acceptor::Acceptor(Descriptor listening,
                   std::shared_ptr<const Credentials> credentials,
                   const Hello& own, Take take,
                   std::shared_ptr<Refusals> refusals)
    : listening_(std::move(listening)),
      wake_(::eventfd(0, EFD_CLOEXEC)),
      credentials_(std::move(credentials)),
      own_(own),
      take_(std::move(take)),
      refusals_(std::move(refusals)) {
  const int fd = listening_.get();
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  thread_ = std::thread([this] { run(); });
}

Acceptor::~Acceptor() {
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) std::terminate();
  thread_.join();
}

void Acceptor::run() {
  std::vector<pollfd> events;
  while (true) {
    events = {{wake_.get(), POLLIN, 0}, {listening_.get(), POLLIN, 0}};
    auto next = Clock::time_point::max();
    for (const auto& each : pending_) {
      const short wanted = each->needs == Status::kNeedsRead ? POLLIN : POLLOUT;
      events.push_back({each->greeting.socket().fd(), wanted, 0});
      next = std::min(next, each->deadline);
    }
    int limit = -1;
    if (!pending_.empty()) {
      limit = static_cast<int>(std::max<int64_t>(
          1, std::chrono::duration_cast<std::chrono::milliseconds>(next -
                                                                   Clock::now())
                     .count() +
                 1));
    }
    if (::poll(events.data(), events.size(), limit) < 0) continue;
    if (events[0].revents) return;
    for (std::size_t k = 0; k < pending_.size(); ++k) {
      const bool is_late = Clock::now() >= pending_[k]->deadline;
      if (!events[2 + k].revents && !is_late) continue;
      bool is_finished = advance(*pending_[k]);
      if (!is_finished && is_late) {
        refusals_->add(pending_[k]->greeting.socket().peer(),
                       "it has not greeted within 5 s");
        is_finished = true;
      }
      if (is_finished) pending_[k].reset();
    }
    pending_.erase(std::remove(pending_.begin(), pending_.end(), nullptr),
                   pending_.end());
    if (events[1].revents) accept_some();
  }
}

void Acceptor::accept_some() {
  for (int k = 0; k < kAtOnce; ++k) {
    Descriptor socket(
        ::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const bool is_full = pending_.size() >= kPending;
    const bool is_out_of_files =
        socket.get() < 0 && (errno == EMFILE || errno == ENFILE);
    if (!pending_.empty() && (is_full || is_out_of_files)) {
      refusals_->add(pending_.front()->greeting.socket().peer(),
                     "it was the oldest of " + std::to_string(pending_.size()) +
                         " that have not greeted");
      pending_.erase(pending_.begin());
    } else if (is_out_of_files) {
      // The system keeps the connection until this process has closed a file.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (socket.get() < 0) return;
    try {
      pending_.push_back(std::make_unique<Pending>(
          TlsSocket(std::move(socket), *credentials_, TlsRole::kServer), own_));
    } catch (const std::exception&) {
      return;  // the stranger is gone, or there is no memory for it
    }
  }
}

bool Acceptor::advance(Pending& pending) {
  TlsSocket& socket = pending.greeting.socket();
  const std::string peer = socket.peer();
  std::string reason;
  try {
    pending.needs = pending.greeting.advance();
    if (pending.needs != Status::kDone) return false;
    reason = take_(socket, pending.greeting.theirs());
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (!reason.empty()) refusals_->add(peer, reason);
  return true;
}

}  // namespace gpipe::internal
