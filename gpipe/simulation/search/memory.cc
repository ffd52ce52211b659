#include "gpipe/simulation/search/memory.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace gpipe::internal {

// Goes from the rank's first stage to its last. A recompute leaves more memory
// to later stages, so a stage is recomputed if its own backward fits with it.
Lean lean(const Problem& problem, int rank, double bytes) {
  Lean result;
  result.next = std::numeric_limits<double>::infinity();
  const auto is_within = [&](double level) {
    if (level <= bytes) return true;
    if (level < result.next) result.next = level;
    return false;
  };
  const auto r = static_cast<std::size_t>(rank);
  double held = problem.resident[r];
  for (const int stage : problem.stages_of[r]) {
    const auto s = static_cast<std::size_t>(stage);
    const double full = problem.activation[s], input = problem.input[s];
    // During its backward a recomputed stage holds input and activations, in
    // addition to the memory of the stages before it.
    const bool recomputed =
        problem.may_recompute && input < full && is_within(held + input + full);
    if (!recomputed && !is_within(held + full)) return result;
    held += recomputed ? input : full;
    result.recomputed.push_back(recomputed ? 1 : 0);
  }
  result.fits = true;
  return result;
}

Order one_at_a_time(const Problem& problem) {
  Order order;
  order.ranks.resize(static_cast<std::size_t>(problem.ranks));
  order.modes.resize(static_cast<std::size_t>(problem.cells()));
  for (int r = 0; r < problem.ranks; ++r) {
    const auto rank = static_cast<std::size_t>(r);
    const auto& stages = problem.stages_of[rank];
    const Lean modes = lean(
        problem, r, std::max(problem.limit[rank], least_bytes(problem, r)));
    auto& steps = order.ranks[rank];
    for (int i = 0; i < problem.microbatches; ++i) {
      for (const int s : stages)
        steps.push_back({{s, ActionKind::kForward, i}, {}});
      for (std::size_t k = stages.size(); k-- > 0;) {
        const Action backward = {stages[k], ActionKind::kBackward, i};
        if (modes.recomputed[k]) {
          order.modes[problem.cell(backward)] = CellMode::kRecompute;
          steps.push_back({{stages[k], ActionKind::kRecompute, i}, {}});
        }
        steps.push_back({backward, {}});
      }
    }
  }
  return order;
}

double least_bytes(const Problem& problem, int rank) {
  double bytes = problem.resident[rank];
  while (true) {
    const Lean modes = lean(problem, rank, bytes);
    if (modes.fits) return bytes;
    bytes = modes.next;
  }
}

}  // namespace gpipe::internal
