#include "benchmarks/harness/report/output.h"

#include <gflags/gflags.h>

#include <iostream>
#include <stdexcept>
#include <vector>

#include "benchmarks/harness/report/json.h"
#include "gpipe/base/text.h"

DEFINE_string(format, "text",
              "The format of the printed table: text, markdown, json (Google "
              "Benchmark's schema) or csv.");

namespace gpipe::benchmarks {
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
    const std::vector<Table> tables = measure();
    const Environment environment = describe_environment();
    for (const Table& table : tables) {
      print_table(table, program.name, environment);
    }
    return kOk;
  });
}

}  // namespace gpipe::benchmarks
