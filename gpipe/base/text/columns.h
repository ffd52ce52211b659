// Formats tables as lines of text. No LibTorch.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe {

// Returns a line for each row, without a line end. Every column is as wide as
// its longest cell, in bytes, and has `gap` spaces before it.
//
// `sides`: a letter per column, 'l' or 'r', for left or right alignment.
//
// Throws std::invalid_argument if `sides` has another letter, or if a row does
// not have one cell per column.
// Complexity: O(n) for n bytes of lines. Thread-safe.
std::vector<std::string> align_columns(
    const std::vector<std::vector<std::string>>& rows, std::string_view sides,
    std::size_t gap = 2);

// Returns the lines of align_columns() as one text, each with a line end. The
// last letter of `sides` holds for all further columns: "lr" aligns the first
// column left and all others right. Errors, complexity and threads are those of
// align_columns().
std::string columns_text(const std::vector<std::vector<std::string>>& rows,
                         std::string sides);

}  // namespace gpipe
