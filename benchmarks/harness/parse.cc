#include "benchmarks/harness/parse.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <stdexcept>

namespace gpipe::benchmarks {

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> entries;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
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

std::vector<int64_t> parse_positive_list(std::string_view flag,
                                         std::string_view text) {
  std::vector<int64_t> values;
  for (const std::string& entry : split_list(text)) {
    int64_t value = 0;
    const char* end = entry.data() + entry.size();
    const auto [stop, error] = std::from_chars(entry.data(), end, value);
    if (error != std::errc() || stop != end || value <= 0) {
      throw std::invalid_argument("--" + std::string(flag) + "=" +
                                  std::string(text) + ": '" + entry +
                                  "' is not a whole number above 0");
    }
    values.push_back(value);
  }
  return values;
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

size_t parse_choice(std::string_view flag, std::string_view text,
                    const std::vector<std::string>& choices) {
  const auto found = std::find(choices.begin(), choices.end(), text);
  if (found == choices.end()) {
    throw std::invalid_argument("--" + std::string(flag) + "=" +
                                std::string(text) + ": expected " +
                                join(choices, ", "));
  }
  return static_cast<size_t>(found - choices.begin());
}

}  // namespace gpipe::benchmarks
