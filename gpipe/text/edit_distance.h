// How far two names are from each other. No LibTorch.
#pragma once

#include <cstddef>
#include <string_view>

namespace gpipe {

// Levenshtein's distance: how many characters (bytes) have to be inserted,
// deleted or exchanged to make one of the other.
//
// Complexity: the product of their lengths. Threads: pure function.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace gpipe
