#include "benchmarks/harness/report/json.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "benchmarks/harness/experiment/statistics.h"

namespace gpipe::benchmarks {
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
  if (!row.error.empty()) {
    Json failed = entry(name, name, "iteration");
    failed["error_occurred"] = true;
    failed["error_message"] = row.error;
    failed["iterations"] = 0;
    add_times(&failed, 0, 0);
    add_cells(&failed, table, row);
    entries->push_back(std::move(failed));
    return;
  }
  if (row.durations.empty()) {
    // Readers of the format require a time in every entry.
    Json timeless = entry(name, name, "iteration");
    timeless["iterations"] = 1;
    add_times(&timeless, 0, 0);
    add_cells(&timeless, table, row);
    entries->push_back(std::move(timeless));
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

}  // namespace gpipe::benchmarks
