// Tables as lines of text. No LibTorch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpipe {

// A line for each row, without an end of line: every column is as wide as the
// longest of its cells, in bytes, and has two spaces before it.
//
// `sides`: a letter per column, 'l' or 'r', for the side that its cells are at.
//
// Errors: std::invalid_argument for another letter, and for a row that has not
// a cell for each of them.
// Complexity: O(n) for n bytes of lines. Threads: pure function.
std::vector<std::string> align_columns(
    const std::vector<std::vector<std::string>>& rows, std::string_view sides);

}  // namespace gpipe
