// Profiles, and sums of their bytes, for the tests of balancing.
#pragma once

#include <algorithm>
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

// Returns the bytes of the tensors that at least one of layers first..last-1
// saves.
inline int64_t bytes_of(const std::vector<SavedTensor>& saved, int64_t first,
                        int64_t last) {
  int64_t bytes = 0;
  for (const SavedTensor& tensor : saved) {
    const auto saver = std::ranges::lower_bound(tensor.savers, first);
    if (saver != tensor.savers.end() && *saver < last) bytes += tensor.bytes;
  }
  return bytes;
}

// Return the bytes that layers first..last-1 keep for backward if they run on
// one device, and between the parts of a split backward.
inline int64_t saved_bytes(const MemoryProfile& profile, int64_t first,
                           int64_t last) {
  return bytes_of(profile.saved, first, last);
}
inline int64_t bytes_for_weights(const MemoryProfile& profile, int64_t first,
                                 int64_t last) {
  return bytes_of(profile.saved_for_weights, first, last);
}

// Returns the bytes that layers first..last-1 receive from other partitions:
// the output of layer first-1 (`input_bytes` if `first` is 0), and the skip
// tensors stashed before `first`.
inline int64_t incoming_bytes(const MemoryProfile& profile, int64_t first,
                              int64_t last) {
  int64_t bytes = first == 0 ? profile.input_bytes
                             : profile.layers.at(first - 1).output_bytes;
  for (const SkipMemory& skip : profile.skips) {
    const bool comes_in = skip.stashed_by < first && first <= skip.popped_by &&
                          skip.popped_by < last;
    if (comes_in) bytes += skip.bytes;
  }
  return bytes;
}

}  // namespace gpipe::balancing
