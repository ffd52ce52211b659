// Public: the processes that train a model together, and their connection.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/distributed/world/error.h"
#include "gpipe/distributed/world/world_options.h"

namespace c10d {
class Backend;
class Store;
class Work;
}  // namespace c10d

namespace gpipe {

// The connections between all ranks, for as long as the object lives.
//
// If a rank fails, dies or freezes, every wait on every rank ends with a
// PeerError that says what happened. The World cannot be used after that. All
// ranks that are left or started again may make a new World with the same
// options; it waits for all of them.
//
// A rank is connected with those ranks with which it exchanges something.
//
// Thread-safe. Has one sleeping thread for each of up to four ranks with which
// it exchanges heartbeats, one that sends them, and few for the connections. A
// rank listens on one port of its own address for as long as the World lives,
// and rank 0 also on the port of the store. Whoever reaches these ports can
// take part: see docs/security.md.
class World {
 public:
  // Connects to all other ranks. Blocks until all ranks have called, at most
  // for twice the timeout.
  //
  // Throws PeerError if ranks do not come in time (it names those that are
  // missing), if they disagree about the size, if two processes have the same
  // rank; c10::DistError if rank 0 cannot listen on its port, or if an address
  // cannot be found; c10::ValueError if an option is out of range.
  //
  // From the first call on, the process ignores SIGPIPE unless it has a
  // handler: a broken connection must be an error and not end the process.
  static std::shared_ptr<World> connect(const WorldOptions& options);

  // Tells the other ranks that this rank leaves, and blocks until all have
  // left, at most for 1 s. During stack unwinding it reports a failure of this
  // rank instead, so that the others need not wait. In a fork of the process it
  // does nothing.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Return the values in WorldOptions.
  int rank() const;
  int size() const;
  int local_rank() const;
  std::chrono::milliseconds timeout() const;
  // Returns WorldOptions::backend. Which transport a pipeline has, and why, is
  // in its transfers() and transfers_reason().
  std::string backend() const;

  // Returns the first failure, if there was one.
  std::optional<RankFailure> failure() const;
  // Throws the first failure as a PeerError, if there was one. Throws
  // c10::Error in a fork of the process, which must not use the connections of
  // its parent.
  void check() const;

  // ---- For the library. ----

  // Returns the c10d group of all ranks, for tensors on the CPU.
  c10d::Backend& group();
  // Returns the store of this world. A blocking wait for a key blocks other
  // callers.
  c10d::Store& store();

  // Connects this rank with `peers` (reach.h). All of them call this with this
  // rank among their peers.
  // `tag`: one at which nothing arrives in between.
  // Throws PeerError if the world has failed or a connection cannot be made.
  void reach(const std::vector<int>& peers, int tag);

  // A function that returns what this rank is doing, for error texts. It is
  // called only when an error text needs it, on any thread.
  using Action = std::function<std::string()>;

  // Start to send or to receive `bytes`, a tensor on the CPU. It must live
  // until wait() has returned for the work. If the connection is broken, the
  // world fails and PeerError is thrown.
  c10::intrusive_ptr<c10d::Work> send(const at::Tensor& bytes, int to, int tag,
                                      const Action& action);
  c10::intrusive_ptr<c10d::Work> receive(const at::Tensor& bytes, int from,
                                         int tag, const Action& action);

  // Runs `post`, which starts a transfer with rank `peer` by another transport,
  // and returns its work. If `post` throws a std::exception, the connection to
  // `peer` is broken: the world fails and PeerError is thrown.
  c10::intrusive_ptr<c10d::Work> begin(
      int peer, const Action& action,
      const std::function<c10::intrusive_ptr<c10d::Work>()>& post);

  // Blocks until a send to or a receive from rank `peer` is complete. If it
  // fails or takes longer than the timeout, the world fails and PeerError is
  // thrown. After a broken connection, waits up to 1 s for the failure detector
  // to learn the cause.
  void wait(c10d::Work& work, int peer, const Action& action);

  // Declares, while in scope, that this rank can do nothing before rank `peer`
  // has done something; peer < 0: that it waits for no rank. The other ranks
  // are told. When a wait times out, the last rank in the chain of ranks that
  // wait for each other is reported as failed.
  class WaitsFor {
   public:
    WaitsFor(World& world, int peer);
    ~WaitsFor();
    WaitsFor(const WaitsFor&) = delete;
    WaitsFor& operator=(const WaitsFor&) = delete;

   private:
    World& world_;
    const int peer_, before_;
  };
  // Declares the same until the next call.
  void set_waits_for(int peer);

  // Reports a failure. The first failure ends all waits and is sent to all
  // other ranks; later ones are ignored. Does not throw.
  void fail(RankFailure failure);

  // on_failure() registers `callback` and returns a number for forget(). It is
  // called once, when the world fails, on any thread; at once if the world has
  // failed already. It must not wait for anything of the world. forget()
  // removes it, and blocks while it runs.
  int on_failure(std::function<void()> callback);
  void forget(int callback);

  // Returns a new number for tags and keys. All ranks get the same numbers if
  // they call this in the same order.
  int next_channel();

 private:
  class Impl;
  explicit World(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpipe
