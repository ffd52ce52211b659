#include "gpipe/text/lists.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>

#include "gpipe/text/refuse.h"

namespace gpipe {
namespace {

using internal::refuse;

// Parses the entries of `text`. Throws if one is not a number from `least` to
// `most`; `kind` describes these numbers.
template <typename Number>
std::vector<Number> parse_list(std::string_view flag, std::string_view text,
                               Number least, Number most, const char* kind) {
  std::vector<Number> values;
  for (const std::string& entry : split_list(text)) {
    Number value{};
    const char* const end = entry.data() + entry.size();
    const auto [stop, error] = std::from_chars(entry.data(), end, value);
    const bool in_range = value >= least && value <= most;  // false for NaN
    if (error != std::errc() || stop != end || !in_range) {
      refuse("--", flag, "=", text, ": '", entry, "' is not a ", kind);
    }
    values.push_back(value);
  }
  return values;
}

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

}  // namespace

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> entries;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::string_view entry = text.substr(0, comma);
    while (!entry.empty() && entry.front() == ' ') entry.remove_prefix(1);
    while (!entry.empty() && entry.back() == ' ') entry.remove_suffix(1);
    entries.emplace_back(entry);
    if (comma == text.size()) break;
    text.remove_prefix(comma + 1);
    if (text.empty()) entries.emplace_back();
  }
  return entries;
}

std::vector<int64_t> parse_numbers(std::string_view flag,
                                   std::string_view text) {
  return parse_list(flag, text, kLeast, kMost, "whole number");
}

std::vector<int64_t> parse_positive_list(std::string_view flag,
                                         std::string_view text) {
  return parse_list<int64_t>(flag, text, 1, kMost, "whole number above 0");
}

std::vector<double> parse_amounts(std::string_view flag,
                                  std::string_view text) {
  return parse_list(flag, text, 0.0, std::numeric_limits<double>::max(),
                    "number of 0 or more");
}

std::string join(const std::vector<std::string>& values,
                 std::string_view separator) {
  std::string text;
  for (std::size_t k = 0; k < values.size(); ++k) {
    if (k > 0) text += separator;
    text += values[k];
  }
  return text;
}

std::string join(const std::vector<int64_t>& values) {
  std::vector<std::string> texts;
  for (const int64_t value : values) texts.push_back(std::to_string(value));
  return join(texts, ",");
}

std::size_t parse_choice(std::string_view flag, std::string_view text,
                         const std::vector<std::string>& choices) {
  const auto found = std::find(choices.begin(), choices.end(), text);
  if (found == choices.end()) {
    refuse("--", flag, "=", text, ": expected ", join(choices, ", "));
  }
  return static_cast<std::size_t>(found - choices.begin());
}

}  // namespace gpipe
