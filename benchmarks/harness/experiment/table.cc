#include "benchmarks/harness/experiment/table.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_replace.h>

#include <algorithm>

#include "gpipe/base/text.h"

namespace gpipe::benchmarks {
namespace {

// The texts of a table: a header and rows of equal length.
struct Grid {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  std::vector<bool> is_numeric;  // per column: true if it has no texts
};

enum class Reader { kPerson, kProgram };

Grid to_grid(const Table& table, const std::string& nothing, Reader reader) {
  Grid grid;
  const bool for_program = reader == Reader::kProgram;
  const bool error_column =
      for_program ||
      std::any_of(table.rows.begin(), table.rows.end(),
                  [](const Row& row) { return !row.error.empty(); });
  grid.header.push_back(table.name_column);
  const auto columns = for_program ? plain_columns(table) : table.columns;
  grid.header.insert(grid.header.end(), columns.begin(), columns.end());
  if (error_column) grid.header.push_back("error");
  grid.is_numeric.assign(grid.header.size(), false);
  std::fill_n(grid.is_numeric.begin() + 1, table.columns.size(), true);
  for (const Row& row : table.rows) {
    auto& texts = grid.rows.emplace_back();
    texts.push_back(row.name);
    for (size_t i = 0; i < table.columns.size(); ++i) {
      const Cell cell = i < row.cells.size() ? row.cells[i] : Cell();
      texts.push_back(cell.is_nothing() ? nothing
                      : for_program     ? cell.plain_text()
                                        : cell.text());
      if (!cell.is_nothing() && !cell.number()) grid.is_numeric[i + 1] = false;
    }
    if (error_column) texts.push_back(row.error);
  }
  return grid;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  return "\"" + absl::StrReplaceAll(text, {{"\"", "\"\""}}) + "\"";
}

}  // namespace

std::optional<double> Cell::number() const {
  const auto* number = std::get_if<double>(&value_);
  return number != nullptr ? std::optional<double>(*number) : std::nullopt;
}

Cell Cell::bytes(std::optional<int64_t> number) {
  Cell cell;
  if (number) cell = Cell(*number);
  cell.is_bytes_ = true;
  return cell;
}

std::string Cell::text() const {
  return is_bytes_ && !is_nothing() ? bytes_text(*number()) : plain_text();
}

std::string Cell::plain_text() const {
  if (const auto* text = std::get_if<std::string>(&value_)) return *text;
  if (is_nothing()) return "";
  return absl::StrFormat("%.*f", decimals_, *number());
}

std::vector<std::string> plain_columns(const Table& table) {
  auto names = table.columns;
  for (size_t i = 0; i < names.size(); ++i) {
    const bool bytes =
        std::any_of(table.rows.begin(), table.rows.end(), [i](const Row& row) {
          return i < row.cells.size() && row.cells[i].is_bytes();
        });
    if (bytes) names[i] += " bytes";
  }
  return names;
}

std::string to_text(const Table& table) {
  const Grid grid = to_grid(table, "-", Reader::kPerson);
  std::vector<size_t> widths;
  for (size_t i = 0; i < grid.header.size(); ++i) {
    size_t width = grid.header[i].size();
    for (const auto& row : grid.rows) width = std::max(width, row[i].size());
    widths.push_back(width);
  }
  const auto line = [&](const std::vector<std::string>& texts) {
    std::string line;
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::string blanks(widths[i] - texts[i].size(), ' ');
      if (i > 0) line += "  ";
      line += grid.is_numeric[i] ? blanks + texts[i] : texts[i] + blanks;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  };
  std::string text = table.title + "\n\n" + line(grid.header);
  std::vector<std::string> rule;
  for (const size_t width : widths) rule.emplace_back(width, '-');
  text += line(rule);
  for (const auto& row : grid.rows) text += line(row);
  if (!table.notes.empty()) text += "\n";
  for (const auto& note : table.notes) text += note + "\n";
  return text;
}

std::string to_markdown(const Table& table) {
  const Grid grid = to_grid(table, "-", Reader::kPerson);
  const auto line = [](const std::vector<std::string>& texts) {
    std::string line = "|";
    for (const auto& text : texts) {
      line += " " + absl::StrReplaceAll(text, {{"|", "\\|"}}) + " |";
    }
    return line + "\n";
  };
  std::string text = "### " + table.title + "\n\n" + line(grid.header) + "|";
  for (const bool numeric : grid.is_numeric)
    text += numeric ? " ---: |" : " --- |";
  text += "\n";
  for (const auto& row : grid.rows) text += line(row);
  if (!table.notes.empty()) text += "\n";
  for (const auto& note : table.notes) text += "- " + note + "\n";
  return text;
}

std::string to_csv(const Table& table) {
  const Grid grid = to_grid(table, "", Reader::kProgram);
  const auto line = [](const std::vector<std::string>& texts) {
    std::string line;
    for (size_t i = 0; i < texts.size(); ++i) {
      line += (i > 0 ? "," : "") + csv_field(texts[i]);
    }
    return line + "\n";
  };
  std::string text;
  const auto comment = [&text](const std::string& sentence) {
    text += "# " + absl::StrReplaceAll(sentence, {{"\n", "\n# "}}) + "\n";
  };
  if (!table.title.empty()) comment(table.title);
  for (const auto& note : table.notes) comment(note);
  text += line(grid.header);
  for (const auto& row : grid.rows) text += line(row);
  return text;
}

}  // namespace gpipe::benchmarks
