// Sockets that listen, and connections to other processes. No LibTorch.
#pragma once

#include <chrono>
#include <string>

#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/hello.h"
#include "gpipe/distributed/links/tls_socket.h"
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

// Returns a connection to the rank `hello.to`, which listens at `address`; both
// ends have proved who they are. Tries again until `deadline` if nothing
// listens there, or if the connection is closed. Throws LinkError; kRefused at
// once if one end has not proved who it is.
TlsSocket connect_to(const std::string& address, int port,
                     const Credentials& credentials, const Hello& hello,
                     std::chrono::steady_clock::time_point deadline);

// Blocks until `status` can be tried again, at most until `deadline`. Returns
// false if the deadline has passed.
bool wait_for(const TlsSocket& socket, TlsSocket::Status status,
              std::chrono::steady_clock::time_point deadline);

}  // namespace gpipe::internal
