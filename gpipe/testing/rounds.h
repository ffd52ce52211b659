// How many rounds a randomised test or a sweep runs.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace gpipe::testing {

// Returns `thorough` if the environment variable GPIPE_THOROUGH is 1, else
// `quick`.
//
// `bazel test //...` is quick. `tools/check.sh thorough` runs everything.
// Rounds come in the same order with the same seeds, so that the quick run is a
// part of the thorough one.
inline int64_t rounds(int64_t quick, int64_t thorough) {
  const char* const value = std::getenv("GPIPE_THOROUGH");
  return value != nullptr && std::string_view(value) == "1" ? thorough : quick;
}

}  // namespace gpipe::testing
