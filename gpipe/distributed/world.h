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

#include "gpipe/distributed/error.h"
#include "gpipe/distributed/world_options.h"

namespace c10d {
class Backend;
class Store;
class Work;
}  // namespace c10d

namespace gpipe {

// A connection of all ranks to all, for as long as the object lives.
//
// If a rank fails, dies or freezes, every wait on every rank ends with a
// PeerError that says what happened; then the connection is of no use any more.
// A new World may be made, by all ranks that are left or started again, with
// the same options; it waits for all of them.
//
// Threads: any. Holds a thread per other rank, which sleeps, and one that sends
// heartbeats.
class World {
 public:
  // From the first call on the process ignores SIGPIPE, unless it has a handler
  // for it: a connection that breaks is an error, and not the end.
  //
  // Returns once all ranks are there. PeerError if they do not come in time
  // (naming those that are missing) or disagree about the size; c10::DistError
  // if the port is in use.
  static std::shared_ptr<World> connect(const WorldOptions& options);

  // In good order: waits, for a moment, until all have come here.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // As in WorldOptions.
  int rank() const;
  int size() const;
  int local_rank() const;
  std::chrono::milliseconds timeout() const;

  // What has happened, if anything has.
  std::optional<RankFailure> failure() const;
  // Throws it as a PeerError. c10::Error in a fork, to whom nothing here
  // belongs.
  void check() const;

  // ---- For the library. ----

  // Of all ranks, for tensors on the CPU.
  c10d::Backend& group();
  // Of this world; one that waits for a key keeps others out.
  c10d::Store& store();

  // What is going on here, for texts; called if it is needed, on any thread.
  using Action = std::function<std::string()>;

  // Begins to send or to receive bytes, a tensor on the CPU that lives until
  // the work has been waited for. If the connection is broken, the world has
  // failed: PeerError.
  c10::intrusive_ptr<c10d::Work> send(const at::Tensor& bytes, int to, int tag,
                                      const Action& action);
  c10::intrusive_ptr<c10d::Work> receive(const at::Tensor& bytes, int from,
                                         int tag, const Action& action);

  // The same by other means: what `post` throws means that the connection to
  // `peer` is broken.
  c10::intrusive_ptr<c10d::Work> begin(
      int peer, const Action& action,
      const std::function<c10::intrusive_ptr<c10d::Work>()>& post);

  // Waits for a send or a receive. If it does not end in time, or not well, the
  // world has failed: PeerError. `peer`: who is at the other end.
  void wait(c10d::Work& work, int peer, const Action& action);

  // While in scope, other ranks are told that this one can do nothing before
  // `peer` has: a wait that ends without an answer is blamed on the last one of
  // those who wait for each other. peer < 0: that it can.
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
  // The same until the next time.
  void set_waits_for(int peer);

  // Something has gone wrong here. The first failure is told to all others; of
  // others nothing happens. Does not throw.
  void fail(RankFailure failure);

  // `callback` is called once when the world fails, from some thread; at once
  // if it has. Until forget(). It must not wait for anything of the world's.
  int on_failure(std::function<void()> callback);
  void forget(int callback);

  // A number that is the same on all ranks if they call this in the same order:
  // for tags and keys.
  int next_channel();

 private:
  class Impl;
  explicit World(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpipe
