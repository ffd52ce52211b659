// How ranks find each other, and the groups of c10d that they make.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gpipe/distributed/world_options.h"

namespace gpipe {

struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;  // of this world
  // Of all ranks, with connections of their own.
  c10::intrusive_ptr<c10d::Backend> data, control;
};

// Waits until all ranks have come. Errors: see World::connect. Never waits for
// longer than twice the timeout.
Meeting meet(const WorldOptions& options);

// A socket that listens on `address` alone, where LibTorch's store would listen
// on all of the machine's. c10::DistNetworkError if the port is in use or the
// address is not of this machine. The caller closes it.
int listen_on(const std::string& address, int port);

// The address of this machine that packets to `address` leave from.
std::string address_towards(const std::string& address, int port);

}  // namespace gpipe
