// Names that people mistype.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gpipe::placement {

// The `count` names that take the fewest letters to be added, removed or
// replaced to become `name` (Levenshtein's distance, upper and lower case being
// the same), the nearest first; of equally near ones the earlier.
std::vector<std::string> nearest(const std::string& name,
                                 std::vector<std::string> names,
                                 std::size_t count = 3);

// "'a', 'b' and 'c'", the nearest, for a message.
std::string nearest_text(const std::string& name,
                         const std::vector<std::string>& names);

}  // namespace gpipe::placement
