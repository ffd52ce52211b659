#include "gpipe/distributed/links/connect.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
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

// The addresses of a host name.
class Addresses {
 public:
  Addresses(const std::string& name, int port, int flags, int type) {
    addrinfo hints{};
    hints.ai_socktype = type;
    hints.ai_flags = flags;
    const int error = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(),
                                    &hints, &first_);
    if (error != 0) {
      fail_network("the address '" + name +
                   "' cannot be found: " + ::gai_strerror(error));
    }
  }
  ~Addresses() { ::freeaddrinfo(first_); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  const addrinfo* first() const { return first_; }

 private:
  addrinfo* first_ = nullptr;
};

// Returns milliseconds for poll().
int until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count() + 1, 0, INT32_MAX));
}

// Returns a connected socket, or the reason of the last failure in `reason`.
Descriptor connect_once(const Addresses& addresses, Clock::time_point deadline,
                        std::string& reason) {
  for (const addrinfo* each = addresses.first(); each; each = each->ai_next) {
    Descriptor socket(::socket(
        each->ai_family, each->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.get() < 0) {
      reason = std::strerror(errno);
      continue;
    }
    int error = 0;
    if (::connect(socket.get(), each->ai_addr, each->ai_addrlen) != 0) {
      error = errno;
    }
    if (error == EINPROGRESS) {
      pollfd event = {socket.get(), POLLOUT, 0};
      socklen_t length = sizeof error;
      if (::poll(&event, 1, until(deadline)) <= 0) {
        error = ETIMEDOUT;
      } else {
        ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      }
    }
    if (error == 0) return socket;
    reason = std::strerror(error);
  }
  return Descriptor();
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

bool wait_for(const TlsSocket& socket, TlsSocket::Status status,
              Clock::time_point deadline) {
  const short wanted =
      status == TlsSocket::Status::kNeedsRead ? POLLIN : POLLOUT;
  pollfd event = {socket.fd(), wanted, 0};
  while (true) {
    const int result = ::poll(&event, 1, until(deadline));
    if (result > 0) return true;
    if (Clock::now() >= deadline) return false;
  }
}

TlsSocket connect_to(const std::string& address, int port,
                     const Credentials& credentials, const Hello& hello,
                     Clock::time_point deadline) {
  const Addresses addresses(address, port, 0, SOCK_STREAM);
  std::string reason;
  while (true) {
    try {
      Descriptor socket = connect_once(addresses, deadline, reason);
      if (socket.get() >= 0) {
        Greeting greeting(
            TlsSocket(std::move(socket), credentials, TlsRole::kClient), hello);
        while (true) {
          const auto status = greeting.advance();
          if (status == TlsSocket::Status::kDone) {
            return std::move(greeting.socket());
          }
          if (!wait_for(greeting.socket(), status, deadline)) break;
        }
        reason = "it does not answer";
      }
    } catch (const LinkError& error) {
      if (error.cause() == LinkError::Cause::kRefused) throw;
      reason = error.what();
    }
    if (Clock::now() >= deadline) break;
    std::this_thread::sleep_for(kLook);
  }
  fail_network("no connection to " + place(address, port) + ": " + reason);
}

}  // namespace gpipe::internal
