#include "balancing/planner/problem.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "gpipe/base/text.h"

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
  const std::size_t layers = problem.workloads[0].layers.size();
  for (const Workload& workload : problem.workloads) {
    if (workload.layers.size() != layers) {
      refuse("one workload has ", layers, " layers, another one ",
             workload.layers.size());
    }
    check_workload(workload);
  }
}

}  // namespace gpipe::balancing::planner
