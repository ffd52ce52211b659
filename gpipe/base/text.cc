#include "gpipe/base/text.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace gpipe {

std::string internal::in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 100;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string result = "'";
  for (const char each : text.substr(0, kLongest)) {
    const auto byte = static_cast<uint8_t>(each);
    // Bytes from 0x80 on stay: they may be UTF-8.
    if (byte < 0x20 || byte == 0x7f) {
      result += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      result += each;
    }
  }
  return result + (text.size() > kLongest ? "...'" : "'");
}

namespace {

using internal::refuse;

// Parses the entries of `text`. Throws if one is not a number from `least` to
// `most`; `kind` describes these numbers.
template <typename Number>
std::vector<Number> parse_list(std::string_view flag, std::string_view text,
                               Number least, Number most, const char* kind) {
  std::vector<Number> values;
  for (const std::string& entry : split_list(text)) {
    const auto value = internal::read_number<Number>(entry);
    const bool in_range = value >= least && value <= most;  // false for NaN
    if (!in_range) {
      refuse("--", flag, "=", text, ": '", entry, "' is not a ", kind);
    }
    values.push_back(*value);
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

namespace {

using Rows = std::vector<std::vector<std::string>>;

void check(const Rows& rows, std::string_view sides) {
  const std::string quoted = "\"" + std::string(sides) + "\"";
  if (sides.find_first_not_of("lr") != std::string_view::npos) {
    refuse("align_columns: the sides ", quoted,
           " may hold the letters l and r only");
  }
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (rows[k].size() == sides.size()) continue;
    refuse("align_columns: row ", k, " has ", rows[k].size(),
           " cells, but the sides ", quoted, " are of ", sides.size(),
           " columns; give each row a cell for each column");
  }
}

}  // namespace

std::vector<std::string> align_columns(const Rows& rows, std::string_view sides,
                                       std::size_t gap) {
  check(rows, sides);
  std::vector<std::size_t> widths(sides.size());
  for (const auto& row : rows) {
    for (std::size_t k = 0; k < row.size(); ++k) {
      widths[k] = std::max(widths[k], row[k].size());
    }
  }
  std::vector<std::string> lines;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t k = 0; k < row.size(); ++k) {
      const std::string space(widths[k] - row[k].size(), ' ');
      line.append(gap, ' ');
      line += sides[k] == 'r' ? space + row[k] : row[k] + space;
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string columns_text(const Rows& rows, std::string sides) {
  if (!rows.empty() && !sides.empty() && sides.size() < rows[0].size()) {
    sides.resize(rows[0].size(), sides.back());
  }
  std::string text;
  for (const std::string& line : align_columns(rows, sides)) {
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

namespace {

template <std::size_t N>
std::string with_unit(double value, double step,
                      const std::array<const char*, N>& units) {
  if (std::isinf(value)) return "unlimited";
  std::size_t unit = 0;
  for (; value >= step && unit + 1 < N; ++unit) value /= step;
  return absl::StrFormat("%.4g %s", value, units[unit]);
}

}  // namespace

std::string bytes_text(double bytes) {
  return with_unit<5>(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
}

std::string seconds_text(double seconds) {
  return with_unit<3>(seconds * 1e6, 1000, {"us", "ms", "s"});
}

std::string percent_text(double part, int decimals) {
  return absl::StrFormat("%.*f %%", decimals, 100 * part);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t exchanged = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({exchanged, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string module_type_name(std::string type) {
  type.resize(std::min(type.find('<'), type.size()));
  type.erase(0, type.rfind(':') + 1);
  const std::string name(absl::StripSuffix(type, "Impl"));
  return name.empty() ? type : name;
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return "unknown";
  return name;
}

}  // namespace gpipe
