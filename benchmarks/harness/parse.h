// Parsers for the texts of flags. Does not include LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe::benchmarks {

// Splits "a,b" into {"a", "b"}, and "" into {}. Removes the spaces around an
// entry.
std::vector<std::string> split_list(std::string_view text);

// Parses "3,4" as {3, 4}. Throws std::invalid_argument, naming `flag`, if an
// entry is not a positive whole number or exceeds 64 bits.
std::vector<int64_t> parse_positive_list(std::string_view flag,
                                         std::string_view text);

// Joins {3, 4} to "3,4".
std::string join(const std::vector<int64_t>& values);

// Joins the values with `separator` between them.
std::string join(const std::vector<std::string>& values,
                 std::string_view separator);

// Returns the index of `text` in `choices`. Throws std::invalid_argument, with
// the flag and the choices, if `text` is not among them.
size_t parse_choice(std::string_view flag, std::string_view text,
                    const std::vector<std::string>& choices);

}  // namespace gpipe::benchmarks
