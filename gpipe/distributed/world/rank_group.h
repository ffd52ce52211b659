// The messages of one rank to all others.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace gpipe::internal {

class PeerLink;

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
  virtual void connect(const std::vector<int>& /*peers*/) {}

  // Makes no more connections. Those that are being made may fail.
  virtual void stop_connecting() = 0;

  // Ends all waits for connections, because the world has failed. Does not
  // block.
  virtual void give_up() {}

  // Returns the link with another rank, for PeerLink::hold(). Returns null if
  // there is none. The group must outlive its use.
  virtual PeerLink* link_with(int /*rank*/) { return nullptr; }
};

}  // namespace gpipe::internal
