// The processes that train a model together, and their connection.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "gpipe/distributed/error.h"
#include "gpipe/distributed/world_options.h"

namespace gpipe {

class World;

namespace internal {
class Communicator;
std::shared_ptr<Communicator> communicator_of(const World& world);
// Returns the communicator of `world`. Throws c10::ValueError if it is null.
std::shared_ptr<Communicator> communicator_of(
    const std::shared_ptr<World>& world);
}  // namespace internal

// The connections between all ranks, for as long as the object lives, or a
// pipeline that was made with it.
//
// If a rank fails, dies or freezes, every wait on every rank ends with a
// PeerError that says what happened. The World cannot be used after that. All
// ranks that are left or started again may make a new World with the same
// options; it waits for all of them. The failed World may still exist then. One
// that has not failed keeps rank 0's port until it and its pipelines end.
//
// A rank is connected with those ranks with which it exchanges something.
//
// Thread-safe. Has one sleeping thread for each of up to four ranks with which
// it exchanges heartbeats, one that sends them, and few for the connections. A
// rank listens on two ports of its own address for as long as the World lives.
// Rank 0 also listens on the port of the store until the World fails. Whoever
// reaches these ports can take part: see docs/security.md.
class World {
 public:
  // Connects to all other ranks. Blocks until all ranks have called, at most
  // for twice the timeout. After a failure rank 0 waits for 2 s more, so that
  // the others can read the reason.
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
  // Returns WorldOptions::backend, or if that is empty, all backends that the
  // program has, such as "cpu:gloo,cuda:nccl". Which transport a pipeline has,
  // and why, is in its transfers() and transfers_reason().
  std::string backend() const;

  // Returns the first failure, if there was one.
  std::optional<RankFailure> failure() const;
  // Throws the first failure as a PeerError, if there was one. Throws
  // c10::Error in a fork of the process, which must not use the connections of
  // its parent.
  void check() const;
  // Reports that this rank has failed: all waits on all ranks end. `action` and
  // `what`: see RankFailure. Does nothing if the world has failed before. Does
  // not throw.
  void fail(const std::string& action, const std::string& what);

 private:
  friend std::shared_ptr<internal::Communicator> internal::communicator_of(
      const World& world);
  explicit World(std::shared_ptr<internal::Communicator> communicator);

  const std::shared_ptr<internal::Communicator> communicator_;
};

}  // namespace gpipe
