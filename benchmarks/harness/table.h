// The result of a benchmark as a table, its formats, and how it is printed.
// Does not include LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "benchmarks/harness/environment.h"
#include "benchmarks/harness/program.h"

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

// Returns the table as JSON. Each duration of a row becomes an entry
// "<program>/<row>" with the run_type "iteration". A row with several durations
// also gets entries for mean, median and standard deviation. A row without
// durations, such as one about memory, becomes an entry with a time of 0. Times
// are in milliseconds. Each cell becomes a member of the entry, named as its
// column in plain_columns(); readers of the format treat numbers as counters.
// Bytes that are not UTF-8 are replaced.
std::string to_json(const Table& table, const std::string& program,
                    const Environment& environment);

// Throws std::invalid_argument if --format is unknown. Call it before the work,
// so that a typing error does not lose the result of a run.
void check_format();

// Prints `table` to stdout in the format of --format. The environment becomes
// the last note or, in JSON, the context.
//
// Throws std::runtime_error if stdout cannot be written.
void print_table(const Table& table, const std::string& program,
                 const Environment& environment);

// Prints the environment alone in the format of --format; as text, one fact per
// line.
//
// Throws std::runtime_error if stdout cannot be written.
void print_environment(const std::string& program,
                       const Environment& environment);

// run_program() for a `measure` that returns tables. Checks --format before the
// work, and prints the tables with the environment after it.
int run_table_program(int argc, char** argv, const Program& program,
                      const std::function<std::vector<Table>()>& measure);

}  // namespace gpipe::benchmarks
