// The result of a benchmark: rows of named cells, which every output format
// is a rendering of. No LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace gpipe::benchmarks {

// A text, a number or nothing.
class Cell {
 public:
  // A number of bytes: "1.5 GiB" to people, all of its digits to programs.
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
  // None for a text and for nothing.
  std::optional<double> number() const;
  bool is_bytes() const { return is_bytes_; }
  // With the decimals that were asked for, or a unit; "" for nothing.
  std::string text() const;
  // The same, but bytes in digits.
  std::string plain_text() const;

 private:
  std::variant<std::monostate, std::string, double> value_;
  int decimals_ = 0;
  bool is_bytes_ = false;
};

// One measurement: an epoch, a step.
struct Duration {
  double wall_seconds = 0;
  double cpu_seconds = 0;  // of all threads of the process
};

struct Row {
  std::string name;
  std::vector<Cell> cells;  // one per column; missing ones are nothing
  std::vector<Duration> durations;
  std::string error;  // why there is no result; empty if there is one
};

struct Table {
  std::string title;
  std::string name_column = "experiment";
  std::vector<std::string> columns;
  std::vector<Row> rows;
  std::vector<std::string> notes;  // sentences under the table
};

// The columns' names for programs: with " bytes" at the end of those that hold
// bytes, whose cells have no unit then.
std::vector<std::string> plain_columns(const Table& table);

// Aligned columns for a terminal: numbers to the right, "-" for nothing. A row
// that failed tells why at its end.
std::string to_text(const Table& table);

// The same for a document. Bars within cells are escaped.
std::string to_markdown(const Table& table);

// A line of names and a line per row (RFC 4180, but with plain newlines), with
// a last column "error". In front the title and the notes, as comments: lines
// that begin with "# ", which pandas.read_csv(comment="#") and R's read.csv(
// comment.char="#") pass over.
std::string to_csv(const Table& table);

}  // namespace gpipe::benchmarks
