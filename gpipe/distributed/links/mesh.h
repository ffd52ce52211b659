// Connections of one process to other ranks. No LibTorch.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/first_use.h"
#include "gpipe/distributed/links/greeter.h"
#include "gpipe/distributed/links/hello.h"
#include "gpipe/distributed/links/peer_link.h"
#include "gpipe/distributed/links/refusals.h"
#include "gpipe/distributed/links/socket.h"
#include "gpipe/processes/descriptor.h"

namespace gpipe::internal {

// What a process needs to make its connections.
struct MeshOptions {
  int rank = 0, size = 1;
  std::string address;  // of this machine, where the other ranks connect
  std::shared_ptr<const Credentials> credentials;
  // Whether messages to processes of this machine go through shared memory.
  bool shares_memory = true;
  std::shared_ptr<Refusals> refusals;
  // How long to wait for a connection from its first use on.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  // Tell the others where this rank listens, and return the text of a rank, or
  // "" while it has told nothing. Only members of the world may write it.
  // `ask`: on any thread.
  std::function<void(const std::string& text)> tell;
  std::function<std::string(int rank)> ask;
};

// Connections to those ranks with which this one exchanges something. Of two
// ranks the one with the larger number connects, when it first uses the link.
// One thread serves all connections, and another one makes the handshakes.
//
// This rank listens on a port until all ranks with a larger number have
// connected, or until stop_connecting(). Thread-safe.
class Mesh {
 public:
  // Does not wait for other ranks. Throws LinkError if this rank cannot listen.
  explicit Mesh(MeshOptions options);

  // Closes the connections. Transfers that are not complete fail.
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // Returns the link with another rank. Its transfers wait for the connection;
  // if there is none after the timeout, their error names the rank. The first
  // call for a smaller rank blocks until that rank has told where it listens,
  // at most for the timeout. Throws LinkError after that, for any number that
  // is no other rank, and for a rank that was not used before
  // stop_connecting().
  PeerLink& link(int rank);

  // Closes the port and ends the thread of handshakes. The links go on.
  void stop_connecting();

 private:
  std::shared_ptr<PeerLink> make_link(int rank);
  std::shared_ptr<PeerLink> waiting_link(int rank);
  std::string take(Socket& socket, const Hello& hello);
  void run();

  const MeshOptions options_;
  Descriptor epoll_, wake_;
  FirstUse<std::shared_ptr<PeerLink>> links_;
  int arrived_ = 0;  // ranks that have connected; the greeter's thread's

  std::mutex mutex_;
  std::unique_ptr<Greeter> greeter_;  // null after stop_connecting()
  std::thread thread_;
};

}  // namespace gpipe::internal
