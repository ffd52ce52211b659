// Suggests names for a mistyped name.
#pragma once

#include <string>
#include <vector>

namespace gpipe::placement {

// Returns the three names nearest to `name` as text for an error: "'a', 'b' and
// 'c'". The nearest comes first; among equally near ones, the earlier. Near
// means a small Levenshtein distance (letters added, removed or replaced),
// ignoring case.
std::string nearest_text(const std::string& name,
                         const std::vector<std::string>& names);

}  // namespace gpipe::placement
