// Simulates pipeline schedules: prints time, bubble, memory, idle time and the
// critical path of one, draws it, or compares several.
//
//   ./bazelw run //tools:schedule -- --schedule=1f1b --stages=8
//       --microbatches=32 --svg=/folder/a.svg
//   ./bazelw run //tools:schedule -- --compare=1f1b,zb-h1,zbv --ranks=8
//   ./bazelw run //tools:schedule -- --csv=/folder/mine.csv --forward=1,2,1
#include "gpipe/schedule.h"

#include <absl/strings/str_join.h>
#include <gflags/gflags.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/base/program.h"
#include "gpipe/base/text.h"
#include "gpipe/simulation.h"
#include "tools/schedule_flags.h"

DEFINE_string(schedule, "1f1b", "The name of a schedule, see above.");
DEFINE_string(compare, "",
              "Compare schedules in a table: a list of names, for example "
              "1f1b,zb-h1, or all.");
DEFINE_int32(columns, 100, "Width of the text picture. 0: no picture.");
DEFINE_string(svg, "", "Write a picture to this file.");
DEFINE_int32(width, 1200, "Width of the --svg picture, in pixels.");
DEFINE_string(trace, "",
              "Write a trace to this file, for ui.perfetto.dev or "
              "chrome://tracing.");
DEFINE_string(write_csv, "", "Write the schedule to this file.");

namespace {

using gpipe::Schedule;
using gpipe::Timeline;
using gpipe::internal::refuse;
using Table = std::vector<std::vector<std::string>>;

// Length of lists whose other entries are of little interest.
constexpr std::size_t kMost = 6;

std::string stages_of(const std::vector<gpipe::Span>& spans) {
  std::set<int64_t> stages;
  for (const gpipe::Span& span : spans) stages.insert(span.action.stage);
  return absl::StrJoin(stages, ",");
}

void print_ranks(const Timeline& timeline) {
  Table table = {{"rank", "stages", "idle", "of all", "peak in flight"}};
  const bool has_memory = !timeline.peak_bytes.empty();
  if (has_memory) table[0].push_back("peak memory");
  for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
    const double whole = timeline.makespan > 0 ? timeline.makespan : 1;
    table.push_back({std::to_string(r), stages_of(timeline.ranks[r]),
                     gpipe::seconds_text(timeline.idle[r]),
                     gpipe::percent_text(timeline.idle[r] / whole),
                     std::to_string(timeline.peak_in_flight[r])});
    if (has_memory) {
      table.back().push_back(gpipe::bytes_text(timeline.peak_bytes[r]));
    }
  }
  std::cout << gpipe::columns_text(table, "lr");
}

std::string link_text(int from, int to) {
  return "copies from rank " + std::to_string(from) + " to " +
         std::to_string(to);
}

std::string step_text(const gpipe::CriticalStep& step) {
  if (step.is_transfer()) return link_text(step.from, step.to);
  if (gpipe::is_compute(step.action.kind)) {
    return "stage " + std::to_string(step.action.stage);
  }
  const bool away = step.action.kind == gpipe::ActionKind::kOffload;
  return std::string(away ? "copies to" : "copies from") +
         " the host of rank " + std::to_string(step.from);
}

std::string more_text(std::size_t all) {
  return all > kMost ? "  ... and " + std::to_string(all - kMost) + " more\n"
                     : "";
}

void print_critical_path(const Timeline& timeline) {
  std::map<std::string, double> parts;
  for (const gpipe::CriticalStep& step : gpipe::critical_path(timeline)) {
    parts[step_text(step)] += step.end - step.start;
  }
  std::vector<std::pair<double, std::string>> sorted;
  for (const auto& [name, seconds] : parts) sorted.emplace_back(-seconds, name);
  std::sort(sorted.begin(), sorted.end());
  std::cout << "the critical path goes through:\n";
  Table table;
  for (const auto& [seconds, name] : sorted) {
    if (table.size() == kMost) break;
    table.push_back({name, gpipe::seconds_text(-seconds),
                     gpipe::percent_text(-seconds / timeline.makespan)});
  }
  std::cout << gpipe::columns_text(table, "lr");
  std::cout << more_text(sorted.size());
}

void describe(const std::string& name, const Schedule& schedule,
              const Timeline& timeline) {
  std::cout << name << ": " << schedule.ranks.size() << " ranks, "
            << gpipe::num_microbatches(schedule) << " micro-batches, "
            << gpipe::seconds_text(timeline.makespan) << "; bubble "
            << gpipe::percent_text(timeline.bubble_fraction) << " of all time, "
            << gpipe::percent_text(timeline.bubble_ratio) << " of the work\n";
  if (FLAGS_columns > 0) std::cout << gpipe::to_text(timeline, FLAGS_columns);
  print_ranks(timeline);
  if (timeline.makespan <= 0) return;
  std::cout << "\nwhy ranks are idle\n"
            << gpipe::to_text(gpipe::idle_parts(timeline));
  print_critical_path(timeline);
}

// Prints a table of the schedules in --compare, and a remark for each one that
// is impossible. Returns the timelines of the others.
std::vector<gpipe::NamedTimeline> compare() {
  const std::vector<std::string> names = FLAGS_compare == "all"
                                             ? gpipe::schedule_names()
                                             : gpipe::split_list(FLAGS_compare);
  std::vector<gpipe::NamedTimeline> timelines;
  Table table = {{"schedule", "stages", "time", "bubble, of all time",
                  "of the work", "peak in flight", "peak memory"}};
  std::string remarks;
  for (const std::string& name : names) {
    // Throws if there is no schedule of this name.
    gpipe::fixed_stages_per_rank(name);
    try {
      const Schedule schedule = make_schedule(name);
      const gpipe::Costs costs = costs_of(schedule);
      Timeline timeline = gpipe::simulate(schedule, costs);
      const auto& in_flight = timeline.peak_in_flight;
      const auto& bytes = timeline.peak_bytes;
      table.push_back({name, std::to_string(costs.forward.size()),
                       gpipe::seconds_text(timeline.makespan),
                       gpipe::percent_text(timeline.bubble_fraction),
                       gpipe::percent_text(timeline.bubble_ratio),
                       std::to_string(*std::max_element(in_flight.begin(),
                                                        in_flight.end())),
                       bytes.empty() ? "?"
                                     : gpipe::bytes_text(*std::max_element(
                                           bytes.begin(), bytes.end()))});
      timelines.push_back({name, std::move(timeline)});
    } catch (const std::invalid_argument& error) {
      remarks += name + ": " + error.what() + "\n";
    }
  }
  std::cout << gpipe::columns_text(table, "lr");
  std::cout << remarks;
  if (timelines.empty()) refuse("none of these schedules is possible");
  return timelines;
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  if (!file) refuse(path, ": cannot be written");
  std::cout << "wrote " << path << "\n";
}

void run() {
  if (FLAGS_columns < 0) refuse("--columns must be at least 0");
  std::vector<gpipe::NamedTimeline> timelines;
  if (!FLAGS_compare.empty()) {
    if (!FLAGS_csv.empty() || !FLAGS_write_csv.empty()) {
      refuse("--compare needs named schedules: remove --csv and --write_csv");
    }
    timelines = compare();
  } else {
    const std::string name = FLAGS_csv.empty() ? FLAGS_schedule : FLAGS_csv;
    const Schedule schedule = make_schedule(name);
    timelines.push_back({name, gpipe::simulate(schedule, costs_of(schedule))});
    describe(name, schedule, timelines[0].timeline);
    if (!FLAGS_write_csv.empty()) {
      write(FLAGS_write_csv, gpipe::to_csv(schedule));
    }
  }
  if (!FLAGS_svg.empty()) {
    write(FLAGS_svg, gpipe::to_svg(timelines, FLAGS_width));
  }
  if (!FLAGS_trace.empty()) {
    write(FLAGS_trace, gpipe::to_chrome_trace(timelines));
  }
}

std::string usage() {
  return "simulates a pipeline schedule, one of\n"
         "  " +
         absl::StrJoin(gpipe::schedule_names(), ", ") +
         ".\n\n"
         "Flags with seconds and bytes take a list with a number per stage, "
         "for example 1,2,1.5, or one number per rank, which is divided "
         "equally among its stages. So schedules with one and with several "
         "stages per rank can be compared";
}

}  // namespace

int main(int argc, char** argv) {
  try {
    gpipe::enter_working_directory();
    if (!gpipe::read_flags(&argc, &argv, usage(), "tools/schedule")) return 0;
    if (argc > 1) refuse(argv[1], ": options are --name=value");
    run();
  } catch (const std::invalid_argument& error) {  // a wrong flag or file
    std::cerr << "schedule: " << error.what() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "schedule: " << error.what() << "\n";
    return 2;
  }
}
