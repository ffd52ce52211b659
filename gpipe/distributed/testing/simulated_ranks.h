// Ranks with simulated accelerators.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world/world.h"
#include "gpipe/testing/simulated/simulated.h"

namespace gpipe::testing {

// Connects to the other ranks. Operators wait for the whole device when they
// are used first, as on CUDA.
inline std::shared_ptr<World> connect_simulated() {
  simulated::set_host_costs({/*most_launches=*/0, /*event_seconds=*/0,
                             /*loads_operators=*/true});
  return World::connect(world_options());
}

// Waits for all devices. Throws if there were races between their streams.
inline void check_no_races() {
  simulated::synchronize();
  for (const std::string& race : simulated::take_races()) {
    throw std::runtime_error(race);
  }
}

}  // namespace gpipe::testing
