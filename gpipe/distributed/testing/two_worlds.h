// The communicators of two ranks in one process, and the store of a launcher.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <future>
#include <memory>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "gpipe/distributed/world/communicator.h"

namespace gpipe::testing {

// Returns a store on `port`, 0 for any free one, as a launcher serves it.
// Throws c10::DistNetworkError if the port is in use.
inline c10::intrusive_ptr<c10d::TCPStore> serve_store(int port = 0) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

// Rank 0 and rank 1, which are used by different threads.
struct TwoWorlds {
  TwoWorlds() {
    WorldOptions options = WorldOptions::from_environment();
    options.size = 2;
    options.port = store->getPort();
    options.store_is_served = true;
    auto other = std::async(std::launch::async, [options]() mutable {
      options.rank = 1;
      return internal::Communicator::connect(options);
    });
    first = internal::Communicator::connect(options);
    second = other.get();
  }
  // Each rank waits until the other one leaves, too.
  ~TwoWorlds() {
    const auto left = std::async(std::launch::async, [this] { first.reset(); });
    second.reset();
  }

  const c10::intrusive_ptr<c10d::TCPStore> store = serve_store();
  std::shared_ptr<internal::Communicator> first, second;
};

}  // namespace gpipe::testing
