// The number of rounds of a randomised test or a sweep.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace gpipe::testing {

// Returns whether the environment variable GPIPE_THOROUGH is 1, as in
// `tools/check.sh thorough`. It is not in `bazel test //...`.
inline bool is_thorough() {
  const char* const value = std::getenv("GPIPE_THOROUGH");
  return value != nullptr && std::string_view(value) == "1";
}

// Returns `thorough` if is_thorough(), else `quick`.
//
// Rounds come in the same order with the same seeds, so that the quick run is a
// part of the thorough one.
inline int64_t rounds(int64_t quick, int64_t thorough) {
  return is_thorough() ? thorough : quick;
}

}  // namespace gpipe::testing
