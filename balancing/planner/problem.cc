#include "balancing/planner/problem.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "gpipe/base/text.h"

namespace gpipe::balancing::planner {
namespace {

using gpipe::internal::refuse;

bool is_cost(double number) { return std::isfinite(number) && number >= 0; }

constexpr std::pair<const char*, double Layer::*> kLayerNumbers[] = {
    {"forward", &Layer::forward},
    {"backward", &Layer::backward},
    {"backward_input", &Layer::backward_input},
    {"backward_weight", &Layer::backward_weight},
    {"recompute", &Layer::recompute},
    {"output_bytes", &Layer::output_bytes},
    {"trained_bytes", &Layer::trained_bytes},
    {"fixed_bytes", &Layer::fixed_bytes}};

void check_layer(const Layer& layer, std::size_t k) {
  for (const auto& [name, number] : kLayerNumbers) {
    if (is_cost(layer.*number)) continue;
    refuse("the ", name, " of layer ", k, " is ", layer.*number,
           ": it must be finite and not negative");
  }
}

void check_saved(const SavedBytes& saved, int64_t layers) {
  bool is_valid = !saved.savers.empty() && is_cost(saved.bytes);
  int64_t before = -1;
  for (const int64_t saver : saved.savers) {
    is_valid = is_valid && saver > before && saver < layers;
    before = saver;
  }
  if (is_valid) return;
  refuse("a saved tensor of ", saved.bytes, " bytes has ", saved.savers.size(),
         " layers: these must be ascending numbers of ", layers,
         " layers, and the bytes finite and not negative");
}

}  // namespace

void check(const Workload& workload) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  if (workload.microbatches < 1) {
    refuse("there are ", workload.microbatches,
           " micro-batches: there must be at least 1");
  }
  if (workload.microbatches > kMost) {
    refuse("there are ", workload.microbatches,
           " micro-batches: a schedule has at most ", kMost);
  }
  const auto layers = std::ssize(workload.layers);
  for (std::size_t k = 0; k < workload.layers.size(); ++k) {
    check_layer(workload.layers[k], k);
  }
  for (const Skip& skip : workload.skips) {
    if (skip.stashed_by >= 0 && skip.stashed_by < skip.popped_by &&
        skip.popped_by < layers && is_cost(skip.bytes)) {
      continue;
    }
    refuse("a skip of ", skip.bytes, " bytes goes from layer ", skip.stashed_by,
           " to layer ", skip.popped_by, " of ", layers,
           ": it must go to a later layer, with a finite number of bytes >= 0");
  }
  for (const auto* list : {&workload.saved, &workload.saved_for_weights}) {
    for (const SavedBytes& saved : *list) check_saved(saved, layers);
  }
}

namespace {

// Returns more seconds than a step of any candidate takes, or a number that is
// not finite: all work and all copies one after the other, on the slowest rank
// and the slowest links.
double longest_step(const Problem& problem, const Workload& workload) {
  double speed = kInfinity, host = kInfinity;
  Link link, sum;
  const auto slower = [](Link& slowest, const Link& other) {
    slowest.latency = std::max(slowest.latency, other.latency);
    slowest.seconds_per_byte =
        std::max(slowest.seconds_per_byte, other.seconds_per_byte);
  };
  for (const Link& each : problem.links) slower(link, each);
  for (const Rank& rank : problem.ranks) {
    speed = std::min(speed, rank.speed);
    host = std::min(host, rank.host_bandwidth);
    slower(sum, rank.sum);
  }
  double seconds = 0, sent = 0, trained = 0, saved = 0;
  for (const Layer& layer : workload.layers) {
    seconds += (layer.forward + layer.backward + layer.backward_input +
                layer.backward_weight + layer.recompute) /
                   speed +
               5 * problem.action_seconds + 2 * link.latency;
    sent += layer.output_bytes;
    trained += layer.trained_bytes;
  }
  for (const Skip& skip : workload.skips) sent += skip.bytes;
  for (const SavedBytes& each : workload.saved) {
    saved += each.bytes * static_cast<double>(each.savers.size());
  }
  seconds += 2 * sent * link.seconds_per_byte;
  if (problem.offload) seconds += 2 * saved / host;
  return static_cast<double>(workload.microbatches) * seconds + sum.latency +
         trained * sum.seconds_per_byte;
}

// Returns at least the bytes that all stages of a candidate hold, or a number
// that is not finite.
double most_bytes(const Problem& problem, const Workload& workload) {
  double resident = 0, held = 0;
  for (const Layer& layer : workload.layers) {
    resident += problem.param_scale * layer.trained_bytes + layer.fixed_bytes;
    held += 2 * layer.output_bytes;
  }
  for (const Skip& skip : workload.skips) held += 2 * skip.bytes;
  for (const auto* list : {&workload.saved, &workload.saved_for_weights}) {
    for (const SavedBytes& each : *list) {
      held += each.bytes * static_cast<double>(each.savers.size());
    }
  }
  return resident + static_cast<double>(workload.microbatches) * held;
}

}  // namespace

Link Problem::link(int from, int to) const {
  if (links.empty()) return {};
  if (links.size() == 1) return links[0];
  return links[static_cast<std::size_t>(from) * ranks.size() +
               static_cast<std::size_t>(to)];
}

bool has_limits(const Problem& problem) {
  return std::ranges::any_of(problem.ranks, [](const Rank& rank) {
    return !std::isinf(rank.memory_bytes);
  });
}

void check(const Problem& problem) {
  if (!is_cost(problem.param_scale)) {
    refuse("param_scale is ", problem.param_scale,
           ": it must be finite and not negative");
  }
  const std::size_t layers = problem.workloads[0].layers.size();
  for (const Workload& workload : problem.workloads) {
    if (workload.layers.size() != layers) {
      refuse("one workload has ", layers, " layers, another one ",
             workload.layers.size());
    }
    check(workload);
    if (!std::isfinite(longest_step(problem, workload))) {
      refuse("with ", workload.microbatches,
             " micro-batches the seconds of layers and copies may add up to "
             "more than the largest number, ",
             std::numeric_limits<double>::max(),
             ": use smaller times and latencies, or larger speeds and "
             "bandwidths");
    }
    if (!std::isfinite(most_bytes(problem, workload))) {
      refuse("with ", workload.microbatches,
             " micro-batches the bytes of layers may add up to more than the "
             "largest number, ",
             std::numeric_limits<double>::max(),
             ": use a smaller param_scale, which is ", problem.param_scale);
    }
  }
}

// ---- Candidates

namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// Returns the schedule that `name` becomes with one stage per rank, or "".
std::string twin_with_one_stage(const std::string& name) {
  if (name == "interleaved-1f1b") return "eager-1f1b";
  if (name == "looped-bfs") return "fill-drain";
  if (name == "zb-interleaved") return "zb-h1";
  return "";
}

// Returns the numbers of stages per rank to try with a schedule, ascending.
std::vector<int64_t> stages_to_try(const Problem& problem,
                                   const std::string& name) {
  const std::optional<int> fixed = fixed_stages_per_rank(name);
  const auto layers = std::ssize(problem.workloads[0].layers);
  const auto ranks = std::ssize(problem.ranks);
  std::set<int64_t> result;
  for (const int64_t stages : problem.stages_per_rank) {
    const bool fits = stages <= layers / ranks;
    const bool is_twin =
        stages == 1 && contains(problem.schedules, twin_with_one_stage(name));
    if (fits && !is_twin && fixed.value_or(stages) == stages) {
      result.insert(stages);
    }
  }
  return {result.begin(), result.end()};
}

std::vector<Recompute> recomputes_to_try(const Problem& problem) {
  std::vector<Recompute> result;
  const bool is_limited = has_limits(problem);
  for (const Recompute recompute : problem.recomputes) {
    if (recompute == kWhereNeeded && !is_limited) continue;
    if (std::ranges::find(result, recompute) == result.end()) {
      result.push_back(recompute);
    }
  }
  return result;
}

// Returns the numbers of the workloads, the one with fewest micro-batches
// first.
std::vector<std::size_t> workloads_to_try(const Problem& problem) {
  std::vector<std::size_t> result(problem.workloads.size());
  std::iota(result.begin(), result.end(), std::size_t{0});
  std::ranges::stable_sort(result, {}, [&](std::size_t k) {
    return problem.workloads[k].microbatches;
  });
  return result;
}

}  // namespace

std::vector<Candidate> candidates(const Problem& problem) {
  std::vector<Candidate> result;
  const std::vector<std::size_t> workloads = workloads_to_try(problem);
  const std::vector<Recompute> recomputes = recomputes_to_try(problem);
  for (const bool offload : {false, true}) {
    if (offload && !problem.offload) continue;
    for (const std::string& name : schedule_names()) {
      if (!contains(problem.schedules, name)) continue;
      for (const int64_t stages : stages_to_try(problem, name)) {
        for (const std::size_t workload : workloads) {
          for (const Recompute recompute : recomputes) {
            if (offload && recompute != Checkpoint::kNever) continue;
            result.push_back({name, stages, workload, recompute, offload});
          }
        }
      }
    }
  }
  return result;
}

Schedule base_schedule(const Problem& problem, const Candidate& candidate) {
  const Workload& workload = problem.workloads[candidate.workload];
  return named_schedule(candidate.schedule,
                        static_cast<int>(problem.ranks.size()),
                        static_cast<int>(workload.microbatches),
                        static_cast<int>(candidate.stages_per_rank));
}

int64_t recomputed_microbatches(Recompute recompute, int64_t microbatches) {
  return recompute ? checkpointed_microbatches(*recompute, microbatches) : 0;
}

}  // namespace gpipe::balancing::planner
