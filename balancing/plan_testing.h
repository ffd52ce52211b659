// Profiles for the tests of plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "balancing/profile.h"

namespace gpipe::balancing {

// Returns a profile of one row. Per layer: `forward` seconds, a backward twice
// as long, 10 bytes saved, 4 bytes of parameters and 6 bytes of output.
inline Profile even_profile(const std::vector<double>& forward) {
  Profile profile;
  profile.rows = 1;
  for (std::size_t k = 0; k < forward.size(); ++k) {
    profile.names.push_back(std::to_string(k));
    profile.times.push_back({forward[k], 2 * forward[k]});
    LayerMemory memory;
    memory.parameter_bytes = memory.trained_bytes = 4;
    memory.output_bytes = 6;
    profile.memory.layers.push_back(memory);
    profile.memory.saved.push_back({10, {static_cast<int64_t>(k)}});
  }
  return profile;
}

}  // namespace gpipe::balancing
