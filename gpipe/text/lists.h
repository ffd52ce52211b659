// Lists and choices in the texts of flags. All errors are std::invalid_argument
// and name the flag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe {

// Splits "a,b" into {"a", "b"}, and "" into {}. Removes the spaces around an
// entry.
std::vector<std::string> split_list(std::string_view text);

// Parses "3,4" as {3, 4}. Throws if an entry is not a whole number or exceeds
// 64 bits.
std::vector<int64_t> parse_numbers(std::string_view flag,
                                   std::string_view text);

// As parse_numbers(), but throws if an entry is not above 0.
std::vector<int64_t> parse_positive_list(std::string_view flag,
                                         std::string_view text);

// Parses "1,0.5" as {1, 0.5}. Throws if an entry is not a number of 0 or more.
std::vector<double> parse_amounts(std::string_view flag, std::string_view text);

// Joins {3, 4} to "3,4".
std::string join(const std::vector<int64_t>& values);

// Joins the values with `separator` between them.
std::string join(const std::vector<std::string>& values,
                 std::string_view separator);

// Returns the index of `text` in `choices`. Throws, with the choices, if `text`
// is not among them.
std::size_t parse_choice(std::string_view flag, std::string_view text,
                         const std::vector<std::string>& choices);

}  // namespace gpipe
