// Telling other ranks of an exception.
#pragma once

#include <exception>
#include <string>

#include "gpipe/distributed/throw.h"
#include "gpipe/distributed/world.h"

namespace gpipe {

// This rank has failed by `exception` in `action`, unless the world has failed
// before, as it has if this is a PeerError of it. Does not throw.
inline void tell(World& world, const std::exception_ptr& exception,
                 const std::string& action) {
  if (world.failure()) return;
  world.fail({Fault::kFailed, world.rank(), world.rank(), action,
              cause_of(exception)});
}

// What `part` returns; what it throws is told first.
template <typename Part>
auto telling(World& world, const std::string& action, Part part) {
  try {
    return part();
  } catch (...) {
    tell(world, std::current_exception(), action);
    throw;
  }
}

}  // namespace gpipe
