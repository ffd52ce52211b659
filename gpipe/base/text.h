// Text of programs: errors, lists in flags, tables, numbers with units, names.
// No LibTorch.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace gpipe::internal {

// Throws std::invalid_argument with all `parts` as one text. Code without
// LibTorch reports invalid arguments by it.
template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

// Reads all of `text` as a number; nullopt if it is not one, or is out of
// range. Thread-safe.
template <typename Number>
std::optional<Number> read_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

// Returns `text` in single quotes, cut after 100 bytes. Control characters are
// shown as "\x1b". Thread-safe.
std::string in_quotes(std::string_view text);

}  // namespace gpipe::internal

namespace gpipe {

// ---- Lists and choices in the texts of flags and errors. All errors are
// std::invalid_argument and name the flag.

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

// ---- Tables as lines of text.

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

// ---- Numbers with readable units.

// Returns a number >= 0 with at most four digits, in the largest unit of which
// it is at least one: "0 B", "1.5 KiB", "98 MiB". Infinity is "unlimited". Byte
// units are B, KiB, MiB, GiB and TiB, in steps of 1024. Units of time are us,
// ms and s.
//
// Thread-safe.
std::string bytes_text(double bytes);
std::string seconds_text(double seconds);

// Returns a fraction as a percentage: 0.125 is "12.5 %", or "12 %" without
// decimals. Thread-safe.
std::string percent_text(double part, int decimals = 1);

// ---- Names.

// Returns the Levenshtein distance: the number of bytes that have to be
// inserted, deleted or replaced to turn `a` into `b`.
//
// Complexity: the product of the lengths. Thread-safe.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns the name that users know: "Conv2d" for "torch::nn::Conv2dImpl", and
// "Cell" for "ns::CellImpl<T>". Thread-safe.
std::string module_type_name(std::string type);

// Returns the host name, or "unknown" if it cannot be read. Thread-safe.
std::string host_name();

}  // namespace gpipe
