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
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/base/program.h"
#include "gpipe/base/text.h"
#include "gpipe/simulation.h"

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

DEFINE_string(csv, "",
              "A schedule from a file instead of a named one. --write_csv or "
              "torch.distributed.pipelining writes such files.");
DEFINE_int32(ranks, 0, "Number of ranks. 0: 4, or as --stages implies.");
DEFINE_int32(stages, 0, "Number of stages of all ranks, instead of --ranks.");
DEFINE_int32(stages_per_rank, 0,
             "Number of stages per rank. 0: what the schedule requires, or 2 "
             "if it allows any number.");
DEFINE_int32(microbatches, 8, "Number of micro-batches.");
DEFINE_string(recompute, "none",
              "Micro-batches that are recomputed: none, all or except_last.");
DEFINE_string(recompute_placement, "before_backward",
              "When to recompute: before_backward, with_backward (after the "
              "gradient has arrived) or ahead (earlier, if there is time).");
DEFINE_string(offload, "none",
              "Cells (stage and micro-batch) that are offloaded: what they "
              "keep for the backward goes to the host in the meantime. none, "
              "all, or distant: with more than --offload_ahead other actions "
              "of the rank between forward and backward.");
DEFINE_int32(offload_ahead, 1,
             "With --offload: the number of actions before the backward at "
             "which the copy back begins.");

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
              "Memory kept instead of --activation_mib from backward-input to "
              "backward-weight, with the gradients that wait for it. '': the "
              "same.");
DEFINE_string(offload_mib, "",
              "The part of --activation_mib that --offload copies to the host. "
              "'': all.");
DEFINE_double(host_bandwidth_gb, 0,
              "Bandwidth of the copies of a rank to its host, and of those "
              "back, in 10^9 bytes per second. 0: unlimited.");

namespace {

using gpipe::Schedule;
using gpipe::Timeline;
using gpipe::internal::refuse;
using Table = std::vector<std::vector<std::string>>;

// ---- The schedule and the costs of the flags. Errors are
// std::invalid_argument.

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
  gpipe::check_unused(
      {"schedule", "ranks", "stages", "stages_per_rank", "microbatches"},
      "has no meaning with --csv: remove one of the two");
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
  gpipe::parse_choice("recompute", FLAGS_recompute,
                      {"none", "all", "except_last"});
  // In the order of RecomputePlacement.
  const std::size_t placement =
      gpipe::parse_choice("recompute_placement", FLAGS_recompute_placement,
                          {"before_backward", "with_backward", "ahead"});
  if (FLAGS_recompute == "none") return schedule;
  const int count =
      gpipe::num_microbatches(schedule) - (FLAGS_recompute == "all" ? 0 : 1);
  return gpipe::with_recompute(
      schedule, [count](int microbatch) { return microbatch < count; },
      static_cast<gpipe::RecomputePlacement>(placement));
}

// Returns `schedule` with the copies to the host that --offload asks for.
Schedule offloading(const Schedule& schedule) {
  gpipe::parse_choice("offload", FLAGS_offload, {"none", "all", "distant"});
  constexpr int kMost = 1 << 28;
  if (FLAGS_offload_ahead < 0 || FLAGS_offload_ahead > kMost) {
    refuse("--offload_ahead is ", FLAGS_offload_ahead,
           ", but it is a number of actions, 0 to ", kMost);
  }
  if (FLAGS_offload == "none") return schedule;
  if (FLAGS_offload == "all") {
    return gpipe::with_offload(
        schedule, [](int, int) { return true; }, FLAGS_offload_ahead);
  }
  return gpipe::with_offload(
      schedule, gpipe::distant_cells(schedule, FLAGS_offload_ahead + 1),
      FLAGS_offload_ahead);
}

// Returns the costs of the stages of `schedule`.
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
  costs.offload_bytes = bytes("offload_mib", FLAGS_offload_mib, Share::kOfRank);
  costs.host_bandwidth = FLAGS_host_bandwidth_gb * 1e9;
  // Without backwards, nothing is kept for them.
  if (is_forward_only(schedule) && !costs.activation_bytes.empty()) {
    costs.activation_bytes.assign(costs.forward.size(), 0);
    costs.weight_activation_bytes.clear();
    costs.offload_bytes.clear();
  }
  const std::vector<double>& kept = costs.activation_bytes;
  const std::vector<double>& moved = costs.offload_bytes;
  for (std::size_t k = 0; k < std::min(kept.size(), moved.size()); ++k) {
    if (moved[k] <= kept[k]) continue;
    refuse("--offload_mib is more than --activation_mib for stage ", k,
           ": only what a forward keeps can go to the host");
  }
  if (costs.bandwidth > 0 && costs.boundary_bytes.empty()) {
    refuse("--bandwidth_gb needs --boundary_mib, the size of what is sent");
  }
  if (costs.host_bandwidth > 0 && costs.activation_bytes.empty() &&
      costs.offload_bytes.empty()) {
    refuse(
        "--host_bandwidth_gb needs --activation_mib, the size of what is "
        "copied");
  }
  return costs;
}

// Returns the schedule in the file --csv, or that of this name if the flag is
// empty. Throws if the schedule is not possible.
Schedule make_schedule(const std::string& name) {
  const Schedule schedule = offloading(
      recomputing(FLAGS_csv.empty() ? named(name) : from_file(FLAGS_csv)));
  gpipe::validate(schedule);
  return schedule;
}

// ---- Output

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

// Refuses flags that nothing reads. A file may have recomputes and offloads.
void check_all_are_read() {
  const auto check_unused = [](bool used, const std::vector<const char*>& flags,
                               const std::string& needs) {
    if (!used) gpipe::check_unused(flags, "has no meaning without " + needs);
  };
  check_unused(!FLAGS_svg.empty(), {"width"}, "--svg");
  const bool is_file = !FLAGS_csv.empty();
  check_unused(is_file || FLAGS_recompute != "none",
               {"recompute_placement", "recompute_seconds", "input_mib"},
               "--recompute");
  check_unused(is_file || FLAGS_offload != "none",
               {"offload_ahead", "offload_mib", "host_bandwidth_gb"},
               "--offload");
}

void run() {
  constexpr int kMost = 10'000;  // above it, nobody can read the picture
  if (FLAGS_columns < 0 || FLAGS_columns > kMost) {
    refuse("--columns=", FLAGS_columns, ": must be from 0 to ", kMost);
  }
  if (!FLAGS_svg.empty() && FLAGS_width < 400) {
    refuse("--width=", FLAGS_width, ": must be at least 400");
  }
  for (const auto& [flag, number] :
       {std::pair("latency", FLAGS_latency),
        std::pair("bandwidth_gb", FLAGS_bandwidth_gb),
        std::pair("host_bandwidth_gb", FLAGS_host_bandwidth_gb)}) {
    if (number >= 0 && std::isfinite(number)) continue;
    refuse("--", flag, "=", number, ": must be a finite number of 0 or more");
  }
  if (!(FLAGS_overlap >= 0 && FLAGS_overlap <= 1)) {
    refuse("--overlap=", FLAGS_overlap, ": must be from 0 to 1");
  }
  gpipe::check_output_files({{"svg", FLAGS_svg},
                             {"trace", FLAGS_trace},
                             {"write_csv", FLAGS_write_csv}},
                            {{"csv", FLAGS_csv}});
  std::vector<gpipe::NamedTimeline> timelines;
  if (!FLAGS_compare.empty()) {
    if (!FLAGS_csv.empty() || !FLAGS_write_csv.empty()) {
      refuse("--compare needs named schedules: remove --csv and --write_csv");
    }
    gpipe::check_unused({"schedule"},
                        "has no meaning with --compare: remove one of the two");
    check_all_are_read();
    timelines = compare();
  } else {
    const std::string name = FLAGS_csv.empty() ? FLAGS_schedule : FLAGS_csv;
    const Schedule schedule = make_schedule(name);
    timelines.push_back({name, gpipe::simulate(schedule, costs_of(schedule))});
    check_all_are_read();
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
    gpipe::begin_program();
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
