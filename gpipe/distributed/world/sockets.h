// Sockets that listen, and the addresses of this machine. No LibTorch.
#pragma once

#include <string>

#include "gpipe/base/processes/descriptor.h"

namespace gpipe::internal {

// Returns a socket that listens on `address` only. `port`: 0 for any free one.
// Throws std::runtime_error if the port is in use, if the address is not of
// this machine, or if it cannot be found.
Descriptor listen_on(const std::string& address, int port);

// Returns the address of this machine from which packets to `address` are sent.
// Sends nothing. Throws std::runtime_error if there is no route, or if the
// address cannot be found.
std::string address_towards(const std::string& address, int port);

}  // namespace gpipe::internal
