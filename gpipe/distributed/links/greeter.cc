#include "gpipe/distributed/links/greeter.h"

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

#include "gpipe/threads/background_thread.h"

namespace gpipe::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Status = Socket::Status;

// How long a greeting may take.
constexpr auto kPatience = std::chrono::seconds(5);
// How many connections are accepted before the others are looked after.
constexpr int kAtOnce = 16;

}  // namespace

struct Greeter::Pending {
  Pending(Socket socket, const Hello& own) : greeting(std::move(socket), own) {}

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

Greeter::Greeter(Descriptor listening,
                 std::shared_ptr<const Credentials> credentials,
                 const Hello& own, Take take,
                 std::shared_ptr<Refusals> refusals)
    : listening_(std::move(listening)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      credentials_(std::move(credentials)),
      own_(own),
      take_(std::move(take)),
      refusals_(std::move(refusals)) {
  const int fd = listening_.get();
  if (fd >= 0) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  thread_ = background_thread([this] { run(); });
}

Greeter::~Greeter() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  wake();
  thread_.join();
}

void Greeter::connect(std::unique_ptr<Connecting> connecting, Made made) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    asked_.emplace_back(std::move(connecting), std::move(made));
  }
  wake();
}

void Greeter::stop_listening() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
  }
  wake();
}

void Greeter::wake() {
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) std::terminate();
}

bool Greeter::obey() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closing_) listening_.close();
  for (Call& each : asked_) calls_.push_back(std::move(each));
  asked_.clear();
  return !is_ending_;
}

int Greeter::patience() const {
  auto next = Clock::time_point::max();
  for (const auto& each : pending_) next = std::min(next, each->deadline);
  for (const Call& each : calls_) next = std::min(next, each.first->next());
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      next - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count() + 1, 1, INT32_MAX));
}

void Greeter::run() {
  std::vector<pollfd> events;
  while (obey()) {
    make();
    // poll() ignores events with a negative file descriptor.
    events = {{wake_.get(), POLLIN, 0}, {listening_.get(), POLLIN, 0}};
    for (const auto& each : pending_) {
      const short wanted = each->needs == Status::kNeedsRead ? POLLIN : POLLOUT;
      events.push_back({each->greeting.socket().fd(), wanted, 0});
    }
    for (const Call& each : calls_) events.push_back(each.first->event());
    if (::poll(events.data(), events.size(), patience()) < 0) continue;
    uint64_t count = 0;
    if (events[0].revents && ::read(wake_.get(), &count, sizeof count) < 0) {
      continue;
    }
    greet(events);
    if (events[1].revents) accept_some();
  }
}

// `events`: those of the pending connections begin at 2.
void Greeter::greet(const std::vector<pollfd>& events) {
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
}

// There are few calls, one for each rank that this rank has just begun to use,
// so all of them are continued after each event.
void Greeter::make() {
  std::erase_if(calls_, [](Call& call) {
    const auto& [connecting, made] = call;
    Socket* socket = nullptr;
    std::string reason;
    try {
      if (!connecting->advance()) return false;
      socket = &connecting->socket();
    } catch (const std::exception& error) {
      reason = error.what();
    }
    made(socket, reason);
    return true;
  });
}

void Greeter::accept_some() {
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
          Socket(std::move(socket), *credentials_, TlsRole::kServer), own_));
    } catch (const std::exception&) {
      return;  // the stranger is gone, or there is no memory for it
    }
  }
}

bool Greeter::advance(Pending& pending) {
  Socket& socket = pending.greeting.socket();
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
