// Reports of exceptions to other ranks.
#pragma once

#include <exception>
#include <string>

#include "gpipe/distributed/world/failure_conversion.h"
#include "gpipe/distributed/world/world.h"

namespace gpipe::internal {

// Reports to the world that this rank has failed by `exception` in `action`.
// Does nothing if the world has failed before, as it has if `exception` is its
// PeerError. Does not throw.
inline void report_failure(World& world, const std::exception_ptr& exception,
                           const std::string& action) {
  if (world.failure()) return;
  world.fail({Fault::kFailed, world.rank(), world.rank(), action,
              cause_of(exception)});
}

// Returns the exception that `part` throws, or null.
template <typename Part>
std::exception_ptr exception_of(Part part) {
  try {
    part();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// Returns the result of `part`. An exception of `part` is first reported by
// report_failure() and then rethrown.
template <typename Part>
auto reporting_failure(World& world, const std::string& action, Part part) {
  try {
    return part();
  } catch (...) {
    report_failure(world, std::current_exception(), action);
    throw;
  }
}

}  // namespace gpipe::internal
