#include "balancing/planner/problem.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "gpipe/schedule.h"
#include "gpipe/text/refuse.h"

namespace gpipe::balancing::planner {
namespace {

using gpipe::internal::refuse;

bool is_cost(double number) { return std::isfinite(number) && number >= 0; }

void check_layer(const Layer& layer, std::size_t k) {
  const auto check_number = [k](const char* name, double number) {
    if (is_cost(number)) return;
    refuse("the ", name, " of layer ", k, " is ", number,
           ": it must be finite and not negative");
  };
  check_number("forward", layer.forward);
  check_number("backward", layer.backward);
  check_number("backward_input", layer.backward_input);
  check_number("backward_weight", layer.backward_weight);
  check_number("recompute", layer.recompute);
  check_number("output_bytes", layer.output_bytes);
  check_number("trained_bytes", layer.trained_bytes);
  check_number("fixed_bytes", layer.fixed_bytes);
}

void check_workload(const Workload& workload) {
  if (workload.microbatches < 1) {
    refuse("there are ", workload.microbatches,
           " micro-batches: there must be at least 1");
  }
  const auto layers = static_cast<int64_t>(workload.layers.size());
  for (std::size_t k = 0; k < workload.layers.size(); ++k) {
    check_layer(workload.layers[k], k);
  }
  for (const ChainSkip& skip : workload.skips) {
    if (skip.stashed_by >= 0 && skip.stashed_by < skip.popped_by &&
        skip.popped_by < layers && is_cost(skip.bytes)) {
      continue;
    }
    refuse("a skip of ", skip.bytes, " bytes goes from layer ", skip.stashed_by,
           " to layer ", skip.popped_by, " of ", layers,
           ": it must go to a later layer, with a finite number of bytes >= 0");
  }
  for (const SavedBytes& saved : workload.saved) {
    bool is_valid = !saved.savers.empty() && is_cost(saved.bytes);
    int64_t before = -1;
    for (const int64_t saver : saved.savers) {
      is_valid = is_valid && saver > before && saver < layers;
      before = saver;
    }
    if (is_valid) continue;
    refuse("a saved tensor of ", saved.bytes, " bytes has ",
           saved.savers.size(), " layers: these must be ascending numbers of ",
           layers, " layers, and the bytes finite and not negative");
  }
}

void check_ranks(const Problem& problem) {
  if (problem.ranks.empty()) refuse("there are no ranks");
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    const Rank& rank = problem.ranks[r];
    if (!std::isfinite(rank.speed) || !(rank.speed > 0)) {
      refuse("the speed of rank ", r, " is ", rank.speed,
             ": it must be above 0");
    }
    if (!(rank.memory_bytes >= 0)) {
      refuse("rank ", r, " has ", rank.memory_bytes,
             " bytes of memory: it must have at least 0");
    }
    if (!(rank.host_bandwidth > 0)) {
      refuse("the host_bandwidth of rank ", r, " is ", rank.host_bandwidth,
             ": it must be above 0");
    }
  }
  const std::size_t pairs = problem.ranks.size() * problem.ranks.size();
  if (problem.links.size() > 1 && problem.links.size() != pairs) {
    refuse(
        "there are ", problem.links.size(), " links for ", problem.ranks.size(),
        " ranks: give none, one, or one for each pair of ranks (", pairs, ")");
  }
  for (const Link& link : problem.links) {
    if (is_cost(link.latency) && is_cost(link.seconds_per_byte)) continue;
    refuse("a link has a latency of ", link.latency, " s and ",
           link.seconds_per_byte,
           " s per byte: both must be finite and not negative");
  }
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
  if (problem.workloads.empty()) refuse("there is no workload");
  const std::size_t layers = problem.workloads[0].layers.size();
  for (const Workload& workload : problem.workloads) {
    if (workload.layers.size() != layers) {
      refuse("one workload has ", layers, " layers, another one ",
             workload.layers.size());
    }
    check_workload(workload);
  }
  check_ranks(problem);
  if (layers < problem.ranks.size()) {
    refuse("there are ", layers, " layers for ", problem.ranks.size(),
           " ranks: each rank needs a layer of its own");
  }
  if (!is_cost(problem.param_scale)) {
    refuse("param_scale is ", problem.param_scale,
           ": it must be finite and not negative");
  }
  if (!is_cost(problem.action_seconds)) {
    refuse("action_seconds is ", problem.action_seconds,
           ": it must be finite and not negative");
  }
  if (!(problem.workers > 0)) {
    refuse("there are ", problem.workers, " workers: it must be above 0");
  }
  if (problem.schedules.empty()) refuse("there is no schedule to try");
  for (const std::string& name : problem.schedules) {
    (void)fixed_stages_per_rank(name);  // throws for an unknown name
    if (name == "forward-only") refuse("forward-only does not train");
  }
  if (problem.recomputes.empty()) refuse("there is no recompute mode to try");
  if (problem.stages_per_rank.empty()) {
    refuse("there is no number of stages per rank to try");
  }
  for (const int64_t stages : problem.stages_per_rank) {
    if (stages >= 1) continue;
    refuse("there is a number of ", stages,
           " stages per rank: it must be at least 1");
  }
}

}  // namespace gpipe::balancing::planner
