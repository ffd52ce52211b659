// The rendezvous: how ranks find each other and connect.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gpipe/distributed/world/gloo_group.h"
#include "gpipe/distributed/world_options.h"

namespace gpipe::internal {

// The connections of a world.
struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;  // with a prefix for this world
  // Groups of all ranks, with separate connections: for the pipeline's
  // messages, and for the failure detector.
  c10::intrusive_ptr<GlooGroup> data, control;
  // The socket at which `store` accepts ranks, and which it owns; -1 if it does
  // not serve ranks.
  int listening = -1;
};

// Blocks until all ranks have called, at most for twice the timeout, and
// returns the connections. Errors: see World::connect().
Rendezvous meet(const WorldOptions& options);

// Frees the port at which the store accepts ranks, if it does. Ranks that are
// connected with the store stay so. Call it while the store exists.
void stop_accepting(const Rendezvous& meeting);

}  // namespace gpipe::internal
