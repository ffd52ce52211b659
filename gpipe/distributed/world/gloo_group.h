// The messages of one rank to all others, by c10d's ProcessGroupGloo.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <mutex>
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

struct DroppedSends;

// A c10d backend with sends and receives of one contiguous tensor on the CPU,
// without collective operations. It makes a Gloo group of two for each pair of
// ranks that exchanges something, when they first do. A wait() without a
// timeout has no limit. A work that is dropped before its wait() keeps its
// tensor until the bytes have left.
//
// One Gloo group of all ranks would connect each rank with all others. Gloo can
// also connect lazily, but in LibTorch 2.15 and before, the end of such a group
// may block forever. What else Gloo needs is handled here:
// - Gloo holds the memory of a send weakly, and its connection never gets past
//   a send whose memory is gone. So the group keeps a dropped send.
// - The constructor of a group blocks until the other rank has made it, too,
//   and cannot be interrupted. So it runs on a thread of its own, which is left
//   behind if the world fails, and ends at the timeout of connections.
// - A wait in LibTorch's TCPStore blocks all other callers of the client. So
//   the store is asked again and again (InterruptibleStore).
//
// Thread-safe.
class GlooGroup final : public c10d::Backend {
 public:
  // `store`: for the addresses, with a prefix for this group. All ranks have
  // the same.
  // `timeout`: of the making of a connection.
  GlooGroup(c10::intrusive_ptr<c10d::Store> store, GlooDevice device, int rank,
            int size, std::chrono::milliseconds timeout);
  ~GlooGroup() override { stop_connecting(); }

  // Begins to connect with `peers`, and does not wait. They are all of those
  // that will call this function, or send or receive, with this rank.
  void connect(const std::vector<int>& peers);

  // Blocks until there is a connection with rank `peer`, as send() and recv()
  // do. Their errors are those of ProcessGroupGloo; std::runtime_error if
  // connecting was stopped, or if there is none at `deadline`.
  c10d::Backend& wait_for(int peer,
                          std::chrono::steady_clock::time_point deadline =
                              std::chrono::steady_clock::time_point::max());
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to,
                                      int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors,
                                      int from, int tag) override;

  // Makes no more connections. Those that are being made may fail, and waits
  // for them end. Does not block.
  void stop_connecting() { *stopped_ = true; }

 private:
  using Pair = c10::intrusive_ptr<c10d::Backend>;
  struct Peer {
    std::shared_future<Pair> pair;
    std::shared_ptr<DroppedSends> dropped;
  };
  Peer peer(int rank);
  // Begins to make the group of two.
  std::shared_future<Pair> start_pair(int peer) const;
  // Returns the number of rank `peer` in its group of two with this rank.
  int number_of(int peer) const { return peer > getRank() ? 1 : 0; }

  const std::shared_ptr<std::atomic<bool>> stopped_ =
      std::make_shared<std::atomic<bool>>(false);
  const c10::intrusive_ptr<c10d::Store> store_;
  const GlooDevice device_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::map<int, Peer> peers_;
};

}  // namespace gpipe::internal
