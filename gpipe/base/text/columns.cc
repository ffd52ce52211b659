#include "gpipe/base/text/columns.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace gpipe {
namespace {

using Rows = std::vector<std::vector<std::string>>;

void check(const Rows& rows, std::string_view sides) {
  const std::string quoted = "\"" + std::string(sides) + "\"";
  if (sides.find_first_not_of("lr") != std::string_view::npos) {
    throw std::invalid_argument("align_columns: the sides " + quoted +
                                " may hold the letters l and r only");
  }
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (rows[k].size() == sides.size()) continue;
    throw std::invalid_argument(
        "align_columns: row " + std::to_string(k) + " has " +
        std::to_string(rows[k].size()) + " cells, but the sides " + quoted +
        " are of " + std::to_string(sides.size()) +
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
    text += line + "\n";
  }
  return text;
}

}  // namespace gpipe
