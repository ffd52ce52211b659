#include "gpipe/distributed/world/sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace gpipe::internal {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Returns the addresses of a host name, as a list.
Addresses find_addresses(const std::string& name, int port, int flags,
                         int type) {
  addrinfo hints{};
  hints.ai_socktype = type;
  hints.ai_flags = flags;
  addrinfo* first = nullptr;
  const int error =
      ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &first);
  if (error != 0) {
    throw std::runtime_error("the address '" + name +
                             "' cannot be found: " + ::gai_strerror(error));
  }
  return {first, &::freeaddrinfo};
}

}  // namespace

Descriptor listen_on(const std::string& address, int port) {
  const auto addresses = find_addresses(address, port, AI_PASSIVE, SOCK_STREAM);
  std::string reason = "it has no address";
  for (const addrinfo* each = addresses.get(); each; each = each->ai_next) {
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
  throw std::runtime_error("cannot listen on " + address + ":" +
                           std::to_string(port) + ": " + reason);
}

std::string address_towards(const std::string& address, int port) {
  // Connecting a datagram socket sends nothing; the system just chooses its
  // address.
  const auto addresses = find_addresses(address, port, 0, SOCK_DGRAM);
  for (const addrinfo* each = addresses.get(); each; each = each->ai_next) {
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
  throw std::runtime_error("there is no route to " + address);
}

}  // namespace gpipe::internal
