// Simulates pipeline schedules: prints time, bubble, memory, idle time and the
// critical path of one, draws it, or compares several.
//
//   ./bazelw run //tools:schedule -- --schedule=1f1b --stages=8
//       --microbatches=32 --svg=/folder/a.svg
//   ./bazelw run //tools:schedule -- --compare=1f1b,zb-h1,zbv --ranks=8
//   ./bazelw run //tools:schedule -- --csv=/folder/mine.csv --forward=1,2,1
//   ./bazelw run //tools:schedule -- --schedule=automatic --forward=1,2,1,3
//       --activation_mib=10 --memory_limit_mib=30
#include "gpipe/schedule.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/program/flags.h"
#include "gpipe/program/working_directory.h"
#include "gpipe/simulation.h"
#include "gpipe/text/columns.h"
#include "gpipe/text/lists.h"
#include "gpipe/text/refuse.h"
#include "gpipe/text/units.h"

DEFINE_string(schedule, "1f1b", "The name of a schedule, see above.");
DEFINE_string(csv, "",
              "A schedule from a file instead of a named one. --write_csv or "
              "torch.distributed.pipelining writes such files.");
DEFINE_string(compare, "",
              "Compare schedules in a table: a list of names, for example "
              "1f1b,zb-h1, or all.");
DEFINE_int32(ranks, 0, "Number of ranks. 0: 4, or as --stages implies.");
DEFINE_int32(stages, 0, "Number of stages of all ranks, instead of --ranks.");
DEFINE_int32(stages_per_rank, 0,
             "Number of stages per rank. 0: what the schedule requires, or 2 "
             "if it allows any number.");
DEFINE_int32(microbatches, 8, "Number of micro-batches.");
DEFINE_string(placement, "loop",
              "For --schedule=automatic with several stages per rank: loop "
              "(ranks 0, 1, 0, 1) or v (ranks 0, 1, 1, 0).");
DEFINE_string(
    memory_limit_mib, "",
    "For --schedule=automatic: memory limit of each rank, one number or a "
    "list with a number per rank. '': no limit.");
DEFINE_string(recompute, "none",
              "Micro-batches that are recomputed: none, all or except_last.");
DEFINE_string(recompute_placement, "before_backward",
              "When to recompute: before_backward, with_backward (after the "
              "gradient has arrived) or ahead (earlier, if there is time).");

DEFINE_string(forward, "1", "Seconds of a forward, see above.");
DEFINE_string(backward, "2", "Seconds of a backward that is not split.");
DEFINE_string(backward_input, "",
              "Seconds of a backward-input. '': half of --backward.");
DEFINE_string(backward_weight, "",
              "Seconds of a backward-weight. '': half of --backward.");
DEFINE_string(recompute_seconds, "",
              "Seconds of a recompute. '': as --forward.");
DEFINE_double(overlap, 0,
              "When a forward and a backward overlap: the fraction of the "
              "shorter one that is hidden, 0 to 1.");
DEFINE_double(latency, 0, "Latency of a copy to another rank, in seconds.");
DEFINE_double(bandwidth_gb, 0,
              "Bandwidth of each link, in 10^9 bytes per second. 0: "
              "unlimited.");
DEFINE_string(boundary_mib, "",
              "Size of what a stage sends to the next one per micro-batch. One "
              "number means this size for each stage, also in --input_mib.");
DEFINE_string(resident_mib, "",
              "Memory that is always in use, for example for parameters.");
DEFINE_string(activation_mib, "",
              "Activations that a forward keeps for its backward, per "
              "micro-batch. Not kept by schedules without backwards.");
DEFINE_string(input_mib, "",
              "Memory kept instead of --activation_mib if the micro-batch is "
              "recomputed.");
DEFINE_string(weight_activation_mib, "",
              "The part of --activation_mib that is kept from backward-input "
              "to backward-weight. '': all.");

DEFINE_int32(columns, 100, "Width of the text picture. 0: no picture.");
DEFINE_double(faster, 0.1,
              "Print what is gained if a stage or link takes this fraction "
              "less time. 0: do not print.");
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

constexpr char kAutomatic[] = "automatic";
// Length of lists whose other entries are of little interest.
constexpr std::size_t kMost = 6;

// ---- The schedule

int ranks_of(int stages_per_rank) {
  if (FLAGS_ranks < 0 || FLAGS_stages < 0) {
    refuse("--ranks and --stages must be at least 1");
  }
  if (FLAGS_stages == 0) return FLAGS_ranks == 0 ? 4 : FLAGS_ranks;
  if (FLAGS_stages % stages_per_rank != 0) {
    refuse("--stages=", FLAGS_stages, " is not a multiple of ", stages_per_rank,
           " stages per rank: use a multiple, or --ranks");
  }
  const int ranks = FLAGS_stages / stages_per_rank;
  if (FLAGS_ranks != 0 && FLAGS_ranks != ranks) {
    refuse("--stages=", FLAGS_stages, " with ", stages_per_rank,
           " stages per rank needs ", ranks,
           " ranks, but --ranks=", FLAGS_ranks,
           ": remove one of the two flags");
  }
  return ranks;
}

Schedule named(const std::string& name) {
  const auto fixed = gpipe::fixed_stages_per_rank(name);
  if (FLAGS_stages_per_rank < 0) {
    refuse("--stages_per_rank must be at least 1");
  }
  const int stages_per_rank =
      FLAGS_stages_per_rank > 0 ? FLAGS_stages_per_rank : fixed.value_or(2);
  return gpipe::named_schedule(name, ranks_of(stages_per_rank),
                               FLAGS_microbatches, stages_per_rank);
}

Schedule from_file(const std::string& path) {
  const std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    refuse(path, ": cannot be read, or is empty");
  }
  try {
    Schedule schedule = gpipe::parse_schedule(text.str());
    gpipe::validate(schedule);
    return schedule;
  } catch (const std::invalid_argument& error) {
    refuse(path, ": ", error.what());
  }
}

// Returns `schedule` with the recomputes that --recompute asks for.
Schedule recomputing(const Schedule& schedule) {
  if (FLAGS_recompute == "none") return schedule;
  int count = gpipe::num_microbatches(schedule);
  if (FLAGS_recompute == "except_last") {
    --count;
  } else if (FLAGS_recompute != "all") {
    refuse("--recompute is '", FLAGS_recompute,
           "', but must be none, all or except_last");
  }
  using Placement = gpipe::RecomputePlacement;
  static const std::map<std::string, Placement> placements = {
      {"before_backward", Placement::kBeforeBackward},
      {"with_backward", Placement::kWithBackward},
      {"ahead", Placement::kAhead}};
  const auto placement = placements.find(FLAGS_recompute_placement);
  if (placement == placements.end()) {
    refuse("--recompute_placement is '", FLAGS_recompute_placement,
           "', but must be before_backward, with_backward or ahead");
  }
  return gpipe::with_recompute(
      schedule, [count](int microbatch) { return microbatch < count; },
      placement->second);
}

gpipe::Costs costs_of(const Schedule& schedule);

// Returns the best schedule that a search finds for the costs and the number of
// stages in the flags, with --placement.
Schedule automatic() {
  const int stages_per_rank = std::max(1, FLAGS_stages_per_rank);
  const int ranks = ranks_of(stages_per_rank);
  if (FLAGS_placement != "loop" && FLAGS_placement != "v") {
    refuse("--placement is '", FLAGS_placement, "', but must be loop or v");
  }
  if (FLAGS_recompute != "none") {
    refuse(
        "--schedule=automatic recomputes only to meet --memory_limit_mib: "
        "remove --recompute");
  }
  const std::vector<int> rank_of_stage = gpipe::place_stages(
      ranks * stages_per_rank, ranks,
      FLAGS_placement == "v" ? gpipe::Placement::kV : gpipe::Placement::kLoop);
  const gpipe::Costs costs =
      costs_of(gpipe::breadth_first(rank_of_stage, FLAGS_microbatches));
  gpipe::AutomaticOptions options;
  for (const double mib :
       gpipe::parse_amounts("memory_limit_mib", FLAGS_memory_limit_mib,
                            std::numeric_limits<double>::infinity())) {
    options.memory_bytes.push_back(mib * 0x1p20);
  }
  const auto found = gpipe::automatic_schedule(
      rank_of_stage, FLAGS_microbatches, costs, options);
  std::cout << "automatic: " << found.origin << "; at least "
            << gpipe::seconds_text(found.lower_bound)
            << " by any schedule of these stages\n";
  return found.schedule;
}

Schedule make(const std::string& name) {
  if (name == kAutomatic && FLAGS_csv.empty()) return automatic();
  Schedule schedule =
      recomputing(FLAGS_csv.empty() ? named(name) : from_file(FLAGS_csv));
  gpipe::validate(schedule);
  return schedule;
}

// ---- Its costs

// The meaning of a single number in a flag.
enum class Share {
  kOfRank,  // divided among the stages of each rank
  kOfStage  // used for each stage
};

// A parser of flags that have one number or a list with a number per stage.
class PerStage {
 public:
  explicit PerStage(const Schedule& schedule) {
    for (const auto& actions : schedule.ranks) {
      std::set<int> stages;
      for (const gpipe::Action& action : actions) stages.insert(action.stage);
      for (const int stage : stages) on_its_rank_[stage] = stages.size();
    }
  }

  // Returns one number per stage, in stage order, or none if `text` is empty.
  std::vector<double> numbers(const std::string& flag, const std::string& text,
                              Share share, double unit = 1) const {
    std::vector<double> list = gpipe::parse_amounts(flag, text);
    if (list.empty()) return list;
    for (double& number : list) number *= unit;
    const std::size_t stages = on_its_rank_.size();
    if (list.size() == 1) {
      const double number = list[0];
      list.clear();
      for (const auto& [stage, count] : on_its_rank_) {
        list.push_back(share == Share::kOfRank
                           ? number / static_cast<double>(count)
                           : number);
      }
    } else if (list.size() != stages) {
      refuse("--", flag, " has ", list.size(), " numbers, but there are ",
             stages, " stages: give one number, or one for each of them");
    }
    return list;
  }

 private:
  std::map<int, std::size_t> on_its_rank_;  // stages on the rank of each stage
};

std::vector<double> or_else(std::vector<double> list,
                            const std::vector<double>& otherwise,
                            double factor) {
  if (!list.empty()) return list;
  for (const double number : otherwise) list.push_back(factor * number);
  return list;
}

bool is_forward_only(const Schedule& schedule) {
  for (const auto& actions : schedule.ranks) {
    for (const gpipe::Action& action : actions) {
      if (action.kind != gpipe::ActionKind::kForward) return false;
    }
  }
  return true;
}

gpipe::Costs costs_of(const Schedule& schedule) {
  const PerStage stages(schedule);
  const auto seconds = [&](const char* flag, const std::string& text) {
    return stages.numbers(flag, text, Share::kOfRank);
  };
  const auto bytes = [&](const char* flag, const std::string& text,
                         Share share) {
    return stages.numbers(flag, text, share, 0x1p20);
  };
  gpipe::Costs costs;
  costs.forward = seconds("forward", FLAGS_forward);
  costs.backward = seconds("backward", FLAGS_backward);
  costs.backward_input = or_else(
      seconds("backward_input", FLAGS_backward_input), costs.backward, 0.5);
  costs.backward_weight = or_else(
      seconds("backward_weight", FLAGS_backward_weight), costs.backward, 0.5);
  costs.recompute = or_else(
      seconds("recompute_seconds", FLAGS_recompute_seconds), costs.forward, 1);
  costs.overlap = FLAGS_overlap;
  costs.latency = FLAGS_latency;
  costs.bandwidth = FLAGS_bandwidth_gb * 1e9;
  costs.boundary_bytes =
      bytes("boundary_mib", FLAGS_boundary_mib, Share::kOfStage);
  costs.resident_bytes =
      bytes("resident_mib", FLAGS_resident_mib, Share::kOfRank);
  costs.activation_bytes =
      bytes("activation_mib", FLAGS_activation_mib, Share::kOfRank);
  costs.input_bytes = bytes("input_mib", FLAGS_input_mib, Share::kOfStage);
  costs.weight_activation_bytes = bytes(
      "weight_activation_mib", FLAGS_weight_activation_mib, Share::kOfRank);
  // Without backwards, nothing is kept for them.
  if (is_forward_only(schedule) && !costs.activation_bytes.empty()) {
    costs.activation_bytes.assign(costs.forward.size(), 0);
  }
  if (costs.bandwidth > 0 && costs.boundary_bytes.empty()) {
    refuse("--bandwidth_gb needs --boundary_mib, the size of what is sent");
  }
  return costs;
}

// ---- What it takes

// Prints a table whose first column holds names.
void print(const Table& table) {
  std::string sides(table[0].size(), 'r');
  sides[0] = 'l';
  for (const std::string& line : gpipe::align_columns(table, sides)) {
    std::cout << line << "\n";
  }
}

std::string stages_of(const std::vector<gpipe::Span>& spans) {
  std::set<int64_t> stages;
  for (const gpipe::Span& span : spans) stages.insert(span.action.stage);
  return gpipe::join({stages.begin(), stages.end()});
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
  print(table);
}

std::string link_text(int from, int to) {
  return "copies from rank " + std::to_string(from) + " to " +
         std::to_string(to);
}

std::string more_text(std::size_t all) {
  return all > kMost ? "  ... and " + std::to_string(all - kMost) + " more\n"
                     : "";
}

void print_critical_path(const Timeline& timeline) {
  std::map<std::string, double> parts;
  for (const gpipe::CriticalStep& step : gpipe::critical_path(timeline)) {
    const std::string name = step.is_transfer()
                                 ? link_text(step.from, step.to)
                                 : "stage " + std::to_string(step.action.stage);
    parts[name] += step.end - step.start;
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
  if (!table.empty()) print(table);
  std::cout << more_text(sorted.size());
}

void print_improvements(const Schedule& schedule, const gpipe::Costs& costs,
                        double makespan) {
  const auto gains = gpipe::improve_first(schedule, costs, FLAGS_faster);
  std::cout << gpipe::percent_text(FLAGS_faster)
            << " less time here would save, of all:\n";
  Table table;
  for (const gpipe::Improvement& gain : gains) {
    if (table.size() == kMost) break;
    table.push_back({gain.stage >= 0 ? "stage " + std::to_string(gain.stage)
                                     : link_text(gain.from, gain.to),
                     gpipe::seconds_text(gain.seconds),
                     gpipe::percent_text(gain.seconds / makespan)});
  }
  print(table);
  std::cout << more_text(gains.size());
}

void describe(const std::string& name, const Schedule& schedule,
              const gpipe::Costs& costs, const Timeline& timeline) {
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
  if (FLAGS_faster > 0) {
    print_improvements(schedule, costs, timeline.makespan);
  }
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
    if (name != kAutomatic) gpipe::fixed_stages_per_rank(name);
    try {
      const Schedule schedule = make(name);
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
  print(table);
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
    const Schedule schedule = make(name);
    const gpipe::Costs costs = costs_of(schedule);
    timelines.push_back({name, gpipe::simulate(schedule, costs)});
    describe(name, schedule, costs, timelines[0].timeline);
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
         gpipe::join(gpipe::schedule_names(), ", ") +
         ",\nor automatic, the best one that a search finds for the costs.\n\n"
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
