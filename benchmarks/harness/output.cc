#include "benchmarks/harness/output.h"

#include <gflags/gflags.h>

#include <iostream>
#include <vector>

#include "benchmarks/harness/json.h"
#include "benchmarks/harness/parse.h"

DEFINE_string(format, "text",
              "How the table is printed: text, markdown, json (Google "
              "Benchmark's schema) or csv.");

namespace gpipe::benchmarks {
namespace {

size_t chosen_format() {
  return parse_choice("format", FLAGS_format,
                      {"text", "markdown", "json", "csv"});
}

}  // namespace

void check_format() { chosen_format(); }

void print_table(const Table& table, const std::string& program,
                 const Environment& environment) {
  switch (chosen_format()) {
    case 0:
      std::cout << to_text(table);
      break;
    case 1:
      std::cout << to_markdown(table);
      break;
    case 2:
      std::cout << to_json(table, program, environment);
      break;
    default:
      std::cout << to_csv(table);
  }
  std::cout.flush();
}

}  // namespace gpipe::benchmarks
