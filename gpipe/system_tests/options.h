// Options for the pipelines of tests, on the devices of the test's variant.
#pragma once

#include <cstdint>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/devices.h"

namespace gpipe::testing {

// All checkpoint modes, for tests that loop over them.
constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast,
                                 Checkpoint::kNever};

// Returns options with partition j on device(j). The defaults are those of
// GPipeOptions.
inline GPipeOptions options(const std::vector<int64_t>& balance,
                            int64_t chunks = 1,
                            Checkpoint mode = Checkpoint::kExceptLast) {
  return GPipeOptions(balance).chunks(chunks).checkpoint(mode).devices(
      devices(balance.size()));
}

}  // namespace gpipe::testing
