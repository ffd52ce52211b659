#include "benchmarks/harness/table.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_replace.h>
#include <gflags/gflags.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "benchmarks/harness/timing.h"
#include "gpipe/base/text.h"

DEFINE_string(format, "text",
              "The format of the printed table: text, markdown, json (Google "
              "Benchmark's schema) or csv.");

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
      for_program || std::ranges::any_of(table.rows, [](const Row& row) {
        return !row.error.empty();
      });
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
    const bool bytes = std::ranges::any_of(table.rows, [i](const Row& row) {
      return i < row.cells.size() && row.cells[i].is_bytes();
    });
    if (bytes) names[i] += " bytes";
  }
  return names;
}

std::string to_text(const Table& table) {
  const Grid grid = to_grid(table, "-", Reader::kPerson);
  // The rule is a row of dashes, as long as the longest text of each column.
  std::vector<std::vector<std::string>> rows = {grid.header, {}};
  rows.insert(rows.end(), grid.rows.begin(), grid.rows.end());
  std::string sides;
  for (size_t i = 0; i < grid.header.size(); ++i) {
    size_t width = grid.header[i].size();
    for (const auto& row : grid.rows) width = std::max(width, row[i].size());
    rows[1].emplace_back(width, '-');
    sides += grid.is_numeric[i] ? 'r' : 'l';
  }
  constexpr size_t kGap = 2;
  std::string text = table.title + "\n\n";
  for (std::string line : align_columns(rows, sides, kGap)) {
    line.erase(0, kGap);
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&text, line, "\n");
  }
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

namespace {

using Json = nlohmann::ordered_json;

// Returns integral values as integers. Values that are not finite become null
// in the JSON text.
Json number(double value) {
  constexpr double kExact = 9007199254740992;  // 2^53
  if (std::nearbyint(value) == value && std::abs(value) < kExact) {
    return static_cast<int64_t>(value);
  }
  return value;
}

Json entry(const std::string& name, const std::string& run_name,
           const char* run_type) {
  return {{"name", name},
          {"run_name", run_name},
          {"run_type", run_type},
          {"threads", 1}};
}

void add_times(Json* members, double wall, double cpu) {
  (*members)["real_time"] = number(wall * 1e3);
  (*members)["cpu_time"] = number(cpu * 1e3);
  (*members)["time_unit"] = "ms";
}

void add_cells(Json* members, const Table& table, const Row& row) {
  const auto columns = plain_columns(table);
  for (size_t i = 0; i < row.cells.size() && i < columns.size(); ++i) {
    const Cell& cell = row.cells[i];
    if (cell.is_nothing()) continue;
    (*members)[columns[i]] =
        cell.number() ? number(*cell.number()) : Json(cell.text());
  }
}

void add_row(Json* entries, const Table& table, const Row& row,
             const std::string& program) {
  const std::string name = program + "/" + row.name;
  if (!row.error.empty() || row.durations.empty()) {
    Json only = entry(name, name, "iteration");
    if (!row.error.empty()) {
      only["error_occurred"] = true;
      only["error_message"] = row.error;
    }
    only["iterations"] = row.error.empty() ? 1 : 0;
    add_times(&only, 0, 0);  // readers of the format require a time
    add_cells(&only, table, row);
    entries->push_back(std::move(only));
    return;
  }
  const std::size_t repetitions = row.durations.size();
  std::vector<double> wall;
  std::vector<double> cpu;
  for (const Duration& duration : row.durations) {
    Json one = entry(name, name, "iteration");
    one["repetitions"] = repetitions;
    one["repetition_index"] = wall.size();
    one["iterations"] = 1;
    add_times(&one, duration.wall_seconds, duration.cpu_seconds);
    add_cells(&one, table, row);
    entries->push_back(std::move(one));
    wall.push_back(duration.wall_seconds);
    cpu.push_back(duration.cpu_seconds);
  }
  if (wall.size() < 2) return;
  const auto add_aggregate = [&](const char* kind, double of_wall,
                                 double of_cpu) {
    Json aggregate = entry(name + "_" + kind, name, "aggregate");
    aggregate["repetitions"] = repetitions;
    aggregate["aggregate_name"] = kind;
    aggregate["aggregate_unit"] = "time";
    aggregate["iterations"] = repetitions;
    add_times(&aggregate, of_wall, of_cpu);
    entries->push_back(std::move(aggregate));
  };
  add_aggregate("mean", mean(wall), mean(cpu));
  add_aggregate("median", median(wall), median(cpu));
  add_aggregate("stddev", deviation(wall), deviation(cpu));
}

}  // namespace

std::string to_json(const Table& table, const std::string& program,
                    const Environment& environment) {
  Json context = Json::object();
  for (const auto& [name, value] : environment.facts) context[name] = value;
  context["executable"] = program;
  context["num_cpus"] = environment.cores;
  context["caches"] = Json::array();
  context["title"] = table.title;
  for (size_t i = 0; i < table.notes.size(); ++i) {
    context["note_" + std::to_string(i + 1)] = table.notes[i];
  }
  Json entries = Json::array();
  for (const Row& row : table.rows) add_row(&entries, table, row, program);
  const Json all = {{"context", std::move(context)},
                    {"benchmarks", std::move(entries)}};
  // A text that is not UTF-8 must not lose the result of the run.
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

namespace {

size_t chosen_format() {
  return parse_choice("format", FLAGS_format,
                      {"text", "markdown", "json", "csv"});
}

// Writes the buffer of stdout, since an error such as a full disk or a closed
// pipe shows only then.
void finish() {
  if (!std::cout.flush()) {
    throw std::runtime_error(
        "the result cannot be written to stdout; is the disk full?");
  }
}

}  // namespace

void check_format() { chosen_format(); }

void print_table(const Table& table, const std::string& program,
                 const Environment& environment) {
  // JSON shows the environment in its context, not as a note.
  Table with_environment = table;
  with_environment.notes.push_back(environment.sentence());
  switch (chosen_format()) {
    case 0:
      std::cout << to_text(with_environment);
      break;
    case 1:
      std::cout << to_markdown(with_environment);
      break;
    case 2:
      std::cout << to_json(table, program, environment);
      break;
    default:
      std::cout << to_csv(with_environment);
  }
  finish();
}

void print_environment(const std::string& program,
                       const Environment& environment) {
  Table table;
  switch (chosen_format()) {
    case 0:
      std::cout << environment.to_string() << "\n";
      break;
    case 2:
      std::cout << to_json(table, program, environment);
      break;
    default:
      table.title = "Environment";
      table.name_column = "fact";
      table.columns = {"value"};
      for (const auto& [name, value] : environment.facts) {
        table.rows.push_back({name, {value}, {}, ""});
      }
      std::cout << (chosen_format() == 1 ? to_markdown(table) : to_csv(table));
  }
  finish();
}

int run_table_program(int argc, char** argv, const Program& program,
                      const std::function<std::vector<Table>()>& measure) {
  return run_program(argc, argv, program, [&] {
    check_format();
    // First, since it tells the load that the measurement finds.
    const Environment environment = describe_environment();
    const std::vector<Table> tables = measure();
    for (const Table& table : tables) {
      print_table(table, program.name, environment);
    }
    return kOk;
  });
}

}  // namespace gpipe::benchmarks
