// Secured connections of one process to all others. No LibTorch.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/peer_link.h"
#include "gpipe/distributed/links/refusals.h"
#include "gpipe/processes/descriptor.h"

namespace gpipe::internal {

// What a process needs to make its connections.
struct MeshOptions {
  int rank = 0, size = 1;
  std::string address;  // of this machine, where the other ranks connect
  std::shared_ptr<const Credentials> credentials;
  std::shared_ptr<Refusals> refusals;
  std::chrono::steady_clock::time_point deadline;
  // Tell the others where this rank listens, and return the text of a rank, or
  // "" while it has told nothing. Only members of the world may write it.
  std::function<void(const std::string& text)> tell;
  std::function<std::string(int rank)> ask;
};

// A connection to each other rank, and one thread that serves all of them.
// While the connections are made, this rank listens on a port; it is closed
// when all are there. Thread-safe.
class Mesh {
 public:
  // Blocks until all ranks are connected. Throws LinkError if `deadline` passes
  // before (the text names the missing ranks), or if a rank has not proved
  // that it belongs to the world.
  explicit Mesh(const MeshOptions& options);

  // Closes the connections. Transfers that are not complete fail.
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // Returns the connection to another rank. Throws LinkError for any other
  // number.
  PeerLink& link(int rank);

 private:
  std::vector<std::unique_ptr<TlsSocket>> connect(const MeshOptions& options);
  void run();

  Descriptor epoll_, wake_;
  const std::shared_ptr<const Credentials> credentials_;
  std::vector<std::shared_ptr<PeerLink>> links_;  // by rank; null for this rank
  std::thread thread_;
};

}  // namespace gpipe::internal
