// The messages of one rank to all others, by c10d's ProcessGroupGloo.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace gloo::transport {
class Device;
}

namespace gpipe::internal {

// The socket on which Gloo listens, and the thread that serves its connections.
// Several groups may share it.
using GlooDevice = std::shared_ptr<::gloo::transport::Device>;

// Returns a device that listens on the interface of `address` only. Throws
// c10::Error or a std::exception of Gloo if there is none.
GlooDevice gloo_device(const std::string& address);

// A c10d backend with sends and receives of one contiguous tensor on the CPU,
// without collective operations, that connects two ranks when they first
// exchange something. A wait() without a timeout has no limit. A work that is
// dropped before its wait() keeps its tensor until the bytes have left.
// Thread-safe.
class RankGroup : public c10d::Backend {
 public:
  using c10d::Backend::Backend;

  // Begins to connect with `peers`, and does not wait. They are all of those
  // that will call this function, or send or receive, with this rank.
  virtual void connect(const std::vector<int>& peers) = 0;

  // Makes no more connections. Those that are being made may fail, and waits
  // for them end. Does not block.
  virtual void stop_connecting() = 0;
};

// Returns a group of all ranks that makes a Gloo group of two for each pair of
// ranks that exchanges something.
//
// send() and recv() block until there is a connection. Their errors are those
// of ProcessGroupGloo; std::runtime_error if connecting was stopped.
//
// `store`: for the addresses, with a prefix for this group. All ranks have the
// same.
// `timeout`: of the making of a connection.
c10::intrusive_ptr<RankGroup> gloo_group(c10::intrusive_ptr<c10d::Store> store,
                                         GlooDevice device, int rank, int size,
                                         std::chrono::milliseconds timeout);

}  // namespace gpipe::internal
