// Suggests names for a mistyped name.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gpipe::placement {

// Returns the `count` names nearest to `name`, the nearest first; among equally
// near ones, the earlier first. Near means a small Levenshtein distance
// (letters added, removed or replaced), ignoring case.
std::vector<std::string> nearest(const std::string& name,
                                 std::vector<std::string> names,
                                 std::size_t count = 3);

// Returns the nearest names as text for an error: "'a', 'b' and 'c'".
std::string nearest_text(const std::string& name,
                         const std::vector<std::string>& names);

}  // namespace gpipe::placement
