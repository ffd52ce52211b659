// Ranks with simulated accelerators.
#pragma once

#include <stdexcept>
#include <string>

#include "gpipe/testing/simulated/simulated.h"

namespace gpipe::testing {

// Waits for all devices. Throws if there were races between their streams.
inline void check_no_races() {
  simulated::synchronize();
  for (const std::string& race : simulated::take_races()) {
    throw std::runtime_error(race);
  }
}

}  // namespace gpipe::testing
