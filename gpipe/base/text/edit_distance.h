// Measures how similar two names are. No LibTorch.
#pragma once

#include <cstddef>
#include <string_view>

namespace gpipe {

// Returns the Levenshtein distance: the number of bytes that have to be
// inserted, deleted or replaced to turn `a` into `b`.
//
// Complexity: the product of the lengths. Thread-safe.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace gpipe
