// Sockets that listen, and connections to other processes. No LibTorch.
#pragma once

#include <netdb.h>
#include <poll.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/hello.h"
#include "gpipe/distributed/links/socket.h"
#include "gpipe/processes/descriptor.h"

namespace gpipe::internal {

// Returns a socket that listens on `address` only. `port`: 0 for any free one.
// Throws LinkError, kNetwork, if the port is in use, if the address is not of
// this machine, or if it cannot be found.
Descriptor listen_on(const std::string& address, int port);

// Returns the port of a socket that listens.
int port_of(const Descriptor& socket);

// Returns the address of this machine from which packets to `address` are sent.
// Sends nothing. Throws LinkError, kNetwork, if there is no route, or if the
// address cannot be found.
std::string address_towards(const std::string& address, int port);

// A connection to another rank that is being made, without blocking. Tries
// again, also at the other addresses of a name, if nothing listens there, or if
// the connection is closed. Not thread-safe.
class Connecting {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Looks `address` up, which may block. `credentials` must outlive this
  // object. Throws LinkError if the address cannot be found.
  Connecting(const std::string& address, int port,
             const Credentials& credentials, const Hello& hello,
             TimePoint deadline);

  // Continues as far as possible. Returns true when both ends have proved who
  // they are; socket() can be moved away then. Throws LinkError: kRefused if
  // one end has not proved it, kNetwork if the deadline has passed.
  bool advance();
  Socket& socket() { return greeting_->socket(); }

  // After advance() has returned false: the event (fd -1: none) and the time
  // after which to call it again, whichever comes first.
  pollfd event() const;
  TimePoint next() const;

 private:
  struct Free {
    void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
  };

  void begin();
  // Returns whether the TCP connection is there.
  bool is_open();

  const std::string place_;
  const Credentials& credentials_;
  const Hello hello_;
  const TimePoint deadline_;
  std::unique_ptr<addrinfo, Free> addresses_;
  const addrinfo* address_;  // the next one to try
  TimePoint begin_at_{};
  Descriptor socket_;  // while the TCP connection is being made
  std::optional<Greeting> greeting_;
  Socket::Status needs_{};
  std::string reason_ = "it does not answer";  // of the last failure
};

// Returns a connection to the rank `hello.to`, which listens at `address`; both
// ends have proved who they are. Tries again until `deadline` if nothing
// listens there, or if the connection is closed. Throws LinkError; kRefused at
// once if one end has not proved who it is.
Socket connect_to(const std::string& address, int port,
                  const Credentials& credentials, const Hello& hello,
                  std::chrono::steady_clock::time_point deadline);

// Blocks until `status` can be tried again, at most until `deadline`. Returns
// false if the deadline has passed.
bool wait_for(const Socket& socket, Socket::Status status,
              std::chrono::steady_clock::time_point deadline);

}  // namespace gpipe::internal
