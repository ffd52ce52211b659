// Lists and choices in the texts of flags and errors. All errors are
// std::invalid_argument and name the flag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

// Returns "\n  a\n  b\n  and 3 more" for a list whose first entries are "a" and
// "b". `listed`: the largest number of entries in the text. `describe(entry)`:
// the text of an entry.
template <typename Describe = std::identity>
std::string first_lines(const std::vector<std::string>& entries,
                        std::size_t listed, const Describe& describe = {}) {
  std::string text;
  for (std::size_t k = 0; k < entries.size() && k < listed; ++k) {
    text.append("\n  ").append(describe(entries[k]));
  }
  if (entries.size() > listed) {
    text += "\n  and " + std::to_string(entries.size() - listed) + " more";
  }
  return text;
}

// Returns the index of `text` in `choices`. Throws, with the choices, if `text`
// is not among them.
std::size_t parse_choice(std::string_view flag, std::string_view text,
                         const std::vector<std::string>& choices);

}  // namespace gpipe
