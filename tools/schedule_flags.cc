#include "tools/schedule_flags.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "gpipe/base/text.h"

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
              "The part of --activation_mib that is kept from backward-input "
              "to backward-weight. '': all.");
DEFINE_string(offload_mib, "",
              "The part of --activation_mib that --offload copies to the host. "
              "'': all.");
DEFINE_double(host_bandwidth_gb, 0,
              "Bandwidth of the copies of a rank to its host, and of those "
              "back, in 10^9 bytes per second. 0: unlimited.");

namespace {

using gpipe::Schedule;
using gpipe::internal::refuse;

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

// Returns `schedule` with the copies to the host that --offload asks for.
Schedule offloading(const Schedule& schedule) {
  if (FLAGS_offload == "none") return schedule;
  if (FLAGS_offload_ahead < 0) {
    refuse("--offload_ahead is ", FLAGS_offload_ahead,
           ", but it is a number of actions, 0 or more");
  }
  if (FLAGS_offload == "all") {
    return gpipe::with_offload(
        schedule, [](int, int) { return true; }, FLAGS_offload_ahead);
  }
  if (FLAGS_offload != "distant") {
    refuse("--offload is '", FLAGS_offload,
           "', but must be none, all or distant");
  }
  return gpipe::with_offload(
      schedule, gpipe::distant_cells(schedule, FLAGS_offload_ahead + 1),
      FLAGS_offload_ahead);
}

}  // namespace

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
    costs.offload_bytes.clear();
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

Schedule make_schedule(const std::string& name) {
  const Schedule schedule = offloading(
      recomputing(FLAGS_csv.empty() ? named(name) : from_file(FLAGS_csv)));
  gpipe::validate(schedule);
  return schedule;
}
