#include "gpipe/distributed/links/connect.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "gpipe/distributed/links/link_error.h"

namespace gpipe::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(20);

std::string place(const std::string& address, int port) {
  return address + ":" + std::to_string(port);
}

[[noreturn]] void fail_network(const std::string& what) {
  throw LinkError(LinkError::Cause::kNetwork, what);
}

// Returns the addresses of a host name, which the caller frees.
addrinfo* look_up(const std::string& name, int port, int flags, int type) {
  addrinfo hints{};
  hints.ai_socktype = type;
  hints.ai_flags = flags;
  addrinfo* first = nullptr;
  const int error =
      ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &first);
  if (error != 0) {
    fail_network("the address '" + name +
                 "' cannot be found: " + ::gai_strerror(error));
  }
  return first;
}

// The addresses of a host name.
class Addresses {
 public:
  Addresses(const std::string& name, int port, int flags, int type)
      : first_(look_up(name, port, flags, type)) {}
  ~Addresses() { ::freeaddrinfo(first_); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  const addrinfo* first() const { return first_; }

 private:
  addrinfo* const first_;
};

// Returns milliseconds for poll().
int until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count() + 1, 0, INT32_MAX));
}

}  // namespace

Descriptor listen_on(const std::string& address, int port) {
  const Addresses addresses(address, port, AI_PASSIVE, SOCK_STREAM);
  std::string reason = "it has no address";
  for (const addrinfo* each = addresses.first(); each; each = each->ai_next) {
    Descriptor socket(
        ::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, 0));
    const int yes = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(socket.get(), each->ai_addr, each->ai_addrlen) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0) {
      return socket;
    }
    reason = std::strerror(errno);
  }
  fail_network("cannot listen on " + place(address, port) + ": " + reason);
}

int port_of(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  // The port is at the same place for IPv4 and IPv6.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::string address_towards(const std::string& address, int port) {
  // Connecting a datagram socket sends nothing; the system just chooses its
  // address.
  const Addresses addresses(address, port, 0, SOCK_DGRAM);
  for (const addrinfo* each = addresses.first(); each; each = each->ai_next) {
    const Descriptor socket(
        ::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    char text[NI_MAXHOST];
    if (::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own),
                      &length) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text,
                      sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
      return text;
    }
  }
  fail_network("there is no route to " + address);
}

bool wait_for(const Socket& socket, Socket::Status status,
              Clock::time_point deadline) {
  const short wanted = status == Socket::Status::kNeedsRead ? POLLIN : POLLOUT;
  pollfd event = {socket.fd(), wanted, 0};
  while (true) {
    const int result = ::poll(&event, 1, until(deadline));
    if (result > 0) return true;
    if (Clock::now() >= deadline) return false;
  }
}

Connecting::Connecting(const std::string& address, int port,
                       const Credentials& credentials, const Hello& hello,
                       TimePoint deadline)
    : place_(place(address, port)),
      credentials_(credentials),
      hello_(hello),
      deadline_(deadline),
      addresses_(look_up(address, port, 0, SOCK_STREAM)),
      address_(addresses_.get()) {}

bool Connecting::advance() {
  while (true) {
    try {
      if (greeting_) {
        needs_ = greeting_->advance();
        if (needs_ == Socket::Status::kDone) return true;
        reason_ = "it does not answer";
        break;
      }
      if (socket_.get() >= 0) {
        if (!is_open()) break;
        greeting_.emplace(
            Socket(std::move(socket_), credentials_, TlsRole::kClient), hello_);
      } else if (Clock::now() >= begin_at_) {
        begin();
      } else {
        break;
      }
    } catch (const LinkError& error) {
      if (error.cause() == LinkError::Cause::kRefused) throw;
      reason_ = error.what();
      greeting_.reset();
      socket_.close();
    }
  }
  if (Clock::now() < deadline_) return false;
  fail_network("no connection to " + place_ + ": " + reason_);
}

// Begins with the next address. After the last one, the first one's turn comes
// kLook later.
void Connecting::begin() {
  const addrinfo& each = *address_;
  if (!each.ai_next) begin_at_ = Clock::now() + kLook;
  address_ = each.ai_next ? each.ai_next : addresses_.get();
  socket_ = Descriptor(::socket(
      each.ai_family, each.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket_.get() < 0 ||
      (::connect(socket_.get(), each.ai_addr, each.ai_addrlen) != 0 &&
       errno != EINPROGRESS)) {
    fail_network(std::strerror(errno));
  }
}

bool Connecting::is_open() {
  pollfd event = {socket_.get(), POLLOUT, 0};
  if (::poll(&event, 1, 0) <= 0) return false;
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) fail_network(std::strerror(error));
  return true;
}

pollfd Connecting::event() const {
  if (!greeting_) return {socket_.get(), POLLOUT, 0};
  const bool needs_read = needs_ == Socket::Status::kNeedsRead;
  return {greeting_->socket().fd(), needs_read ? short{POLLIN} : short{POLLOUT},
          0};
}

Connecting::TimePoint Connecting::next() const {
  const bool is_idle = !greeting_ && socket_.get() < 0;
  return is_idle ? std::min(begin_at_, deadline_) : deadline_;
}

Socket connect_to(const std::string& address, int port,
                  const Credentials& credentials, const Hello& hello,
                  Clock::time_point deadline) {
  Connecting connecting(address, port, credentials, hello, deadline);
  while (!connecting.advance()) {
    pollfd event = connecting.event();
    ::poll(&event, 1, until(connecting.next()));
  }
  return std::move(connecting.socket());
}

}  // namespace gpipe::internal
