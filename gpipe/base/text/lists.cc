#include "gpipe/base/text/lists.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>

#include "gpipe/base/text/refuse.h"

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
  if (text.empty()) return {};
  std::vector<std::string> entries = absl::StrSplit(std::string(text), ',');
  for (std::string& entry : entries) absl::StripAsciiWhitespace(&entry);
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

std::size_t parse_choice(std::string_view flag, std::string_view text,
                         const std::vector<std::string>& choices) {
  const auto found = std::find(choices.begin(), choices.end(), text);
  if (found == choices.end()) {
    refuse("--", flag, "=", text, ": expected ", absl::StrJoin(choices, ", "));
  }
  return static_cast<std::size_t>(found - choices.begin());
}

}  // namespace gpipe
