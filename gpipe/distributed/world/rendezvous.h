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
};

// Blocks until all ranks have called, at most for twice the timeout, and
// returns the connections. Errors: see World::connect().
Rendezvous meet(const WorldOptions& options);

}  // namespace gpipe::internal
