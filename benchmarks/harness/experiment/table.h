// The result of a benchmark as a table, and its output formats. Does not
// include LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace gpipe::benchmarks {

// A cell of a table: a text, a number or nothing.
class Cell {
 public:
  // Makes a number of bytes. People see "1.5 GiB", programs all digits.
  static Cell bytes(std::optional<int64_t> number);

  Cell() = default;
  /* implicit */ Cell(std::string text) : value_(std::move(text)) {}
  /* implicit */ Cell(const char* text) : value_(std::string(text)) {}
  /* implicit */ Cell(int64_t number)
      : value_(static_cast<double>(number)), decimals_(0) {}
  Cell(std::optional<double> number, int decimals) : decimals_(decimals) {
    if (number) value_ = *number;
  }

  bool is_nothing() const { return value_.index() == 0; }
  // Returns the number, or none for a text and for nothing.
  std::optional<double> number() const;
  bool is_bytes() const { return is_bytes_; }
  // Returns the text for people: a number with its decimals, bytes with a unit,
  // "" for nothing.
  std::string text() const;
  // Returns the text for programs: as text(), but bytes in digits without a
  // unit.
  std::string plain_text() const;

 private:
  std::variant<std::monostate, std::string, double> value_;
  int decimals_ = 0;
  bool is_bytes_ = false;
};

// The duration of one measurement, such as an epoch or a step.
struct Duration {
  double wall_seconds = 0;
  double cpu_seconds = 0;  // sum over all threads of the process
};

// A row of a table.
struct Row {
  std::string name;
  std::vector<Cell> cells;  // one per column; missing cells are nothing
  std::vector<Duration> durations;
  std::string error;  // the reason why there is no result; "" if there is one
};

// A table with its notes.
struct Table {
  std::string title;
  std::string name_column = "experiment";
  std::vector<std::string> columns;
  std::vector<Row> rows;
  std::vector<std::string> notes;  // sentences under the table
};

// Returns the names of the columns for programs. Names of columns with bytes
// end in " bytes", since Cell::plain_text() has no unit.
std::vector<std::string> plain_columns(const Table& table);

// Returns the table as text with aligned columns, for a terminal. Columns of
// numbers are right-aligned, and "-" stands for nothing. If a row failed, the
// last column shows the error.
std::string to_text(const Table& table);

// Returns the same in Markdown. "|" in cells is escaped.
std::string to_markdown(const Table& table);

// Returns the table as CSV (RFC 4180, but with plain newlines): a line of
// column names and a line per row. The last column is "error". The title and
// the notes come first, as comments: lines that begin with "# ". Both
// pandas.read_csv(comment="#") and read.csv(comment.char="#") of R skip them.
std::string to_csv(const Table& table);

}  // namespace gpipe::benchmarks
