#include "benchmarks/harness/json.h"

#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "benchmarks/harness/statistics.h"

namespace gpipe::benchmarks {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char buffer[8];
      std::snprintf(buffer, sizeof(buffer), "\\u%04x", c);
      out += buffer;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.10g", value);
  return buffer;
}

// Members of an object in order; the values are JSON already.
using Members = std::vector<std::pair<std::string, std::string>>;

std::string object(const Members& members, const std::string& indent) {
  std::string text = "{";
  for (const auto& [name, value] : members) {
    text += (text.size() > 1 ? "," : "");
    text += "\n" + indent + "  " + quoted(name) + ": " + value;
  }
  return text + "\n" + indent + "}";
}

Members entry(const std::string& name, const std::string& run_name,
              const char* run_type) {
  return {{"name", quoted(name)},
          {"run_name", quoted(run_name)},
          {"run_type", quoted(run_type)},
          {"threads", "1"}};
}

void add_times(Members* members, double wall, double cpu) {
  members->emplace_back("real_time", number(wall * 1e3));
  members->emplace_back("cpu_time", number(cpu * 1e3));
  members->emplace_back("time_unit", quoted("ms"));
}

void add_cells(Members* members, const Table& table, const Row& row) {
  for (size_t i = 0; i < row.cells.size() && i < table.columns.size(); ++i) {
    const Cell& cell = row.cells[i];
    if (cell.is_nothing()) continue;
    members->emplace_back(table.columns[i], cell.number()
                                                ? number(*cell.number())
                                                : quoted(cell.text()));
  }
}

void add_row(std::vector<Members>* entries, const Table& table, const Row& row,
             const std::string& program) {
  const std::string name = program + "/" + row.name;
  if (!row.error.empty()) {
    Members failed = entry(name, name, "iteration");
    failed.emplace_back("error_occurred", "true");
    failed.emplace_back("error_message", quoted(row.error));
    failed.emplace_back("iterations", "0");
    add_times(&failed, 0, 0);
    add_cells(&failed, table, row);
    entries->push_back(std::move(failed));
    return;
  }
  const std::string repetitions = std::to_string(row.durations.size());
  std::vector<double> wall;
  std::vector<double> cpu;
  for (const Duration& duration : row.durations) {
    Members one = entry(name, name, "iteration");
    one.emplace_back("repetitions", repetitions);
    one.emplace_back("repetition_index", std::to_string(wall.size()));
    one.emplace_back("iterations", "1");
    add_times(&one, duration.wall_seconds, duration.cpu_seconds);
    add_cells(&one, table, row);
    entries->push_back(std::move(one));
    wall.push_back(duration.wall_seconds);
    cpu.push_back(duration.cpu_seconds);
  }
  if (wall.size() < 2) return;
  const auto add_aggregate = [&](const char* kind, double of_wall,
                                 double of_cpu) {
    Members aggregate = entry(name + "_" + kind, name, "aggregate");
    aggregate.emplace_back("repetitions", repetitions);
    aggregate.emplace_back("aggregate_name", quoted(kind));
    aggregate.emplace_back("aggregate_unit", quoted("time"));
    aggregate.emplace_back("iterations", repetitions);
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
  Members context;
  for (const auto& [name, value] : environment.facts) {
    context.emplace_back(name, quoted(value));
  }
  context.emplace_back("executable", quoted(program));
  context.emplace_back("num_cpus", std::to_string(environment.cores));
  context.emplace_back("caches", "[]");
  context.emplace_back("title", quoted(table.title));
  for (size_t i = 0; i < table.notes.size(); ++i) {
    context.emplace_back("note_" + std::to_string(i + 1),
                         quoted(table.notes[i]));
  }

  std::vector<Members> entries;
  for (const Row& row : table.rows) add_row(&entries, table, row, program);
  std::string text =
      "{\n  \"context\": " + object(context, "  ") + ",\n  \"benchmarks\": [";
  for (size_t i = 0; i < entries.size(); ++i) {
    text += (i > 0 ? ",\n    " : "\n    ") + object(entries[i], "    ");
  }
  return text + "\n  ]\n}\n";
}

}  // namespace gpipe::benchmarks
