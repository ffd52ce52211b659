#include "gpipe/simulation/search/problem.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "gpipe/schedule/sizes.h"
#include "gpipe/text/refuse.h"

namespace gpipe::internal {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

std::vector<double> limits(const std::vector<double>& given, int ranks) {
  for (std::size_t k = 0; k < given.size(); ++k) {
    // This comparison is false for NaN, so NaN is refused.
    if (given[k] >= 0) continue;
    refuse("memory limit ", k, " is ", given[k],
           ": it is a number of bytes, 0 or more");
  }
  if (given.empty()) return std::vector<double>(size(ranks), kInfinite);
  if (given.size() == 1) return std::vector<double>(size(ranks), given[0]);
  if (given.size() != size(ranks)) {
    refuse("there are ", given.size(), " memory limits for ", ranks,
           " ranks: give none, one for all, or one for each");
  }
  return given;
}

// Returns a schedule with an action of each stage and each kind that has costs,
// so that Engine makes the durations of all of them.
Schedule probe(const Problem& problem) {
  std::vector<ActionKind> kinds = {ActionKind::kForward, ActionKind::kBackward};
  if (problem.may_recompute) kinds.push_back(ActionKind::kRecompute);
  if (problem.may_split) {
    kinds.push_back(ActionKind::kBackwardInput);
    kinds.push_back(ActionKind::kBackwardWeight);
  }
  if (problem.may_offload) {
    kinds.push_back(ActionKind::kOffload);
    kinds.push_back(ActionKind::kReload);
  }
  Schedule schedule;
  schedule.ranks.resize(size(problem.ranks));
  for (int s = 0; s < problem.stages; ++s) {
    for (const ActionKind kind : kinds) {
      schedule.ranks[problem.rank_of[s]].push_back({s, kind, 0});
    }
  }
  return schedule;
}

}  // namespace

Problem::Problem(const std::vector<int>& rank_of_stage, int microbatches,
                 const Costs& given, const AutomaticOptions& options)
    : stages(static_cast<int>(rank_of_stage.size())),
      microbatches(microbatches),
      rank_of(rank_of_stage),
      costs(given) {
  if (stages < 1 || microbatches < 1) {
    refuse("there are ", stages, " stages and ", microbatches,
           " micro-batches: a schedule needs at least one of each");
  }
  if (options.budget < 0) {
    refuse("the budget is ", options.budget,
           " candidates: it must not be negative");
  }
  check_costs(costs);
  ranks = count_ranks(rank_of);
  stages_of.resize(size(ranks));
  for (int s = 0; s < stages; ++s) stages_of[rank_of[s]].push_back(s);

  const auto& i = costs.backward_input;
  const auto& w = costs.backward_weight;
  const bool parts = i.size() >= size(stages) && w.size() >= size(stages);
  if (costs.backward.empty() && parts) {
    for (std::size_t s = 0; s < size(stages); ++s) {
      costs.backward.push_back(i[s] + w[s]);
    }
  }
  if (costs.backward.empty()) {
    refuse(
        "there is no backward cost of stage 0, nor both of its parts: give "
        "one for each stage (for inference there is forward_only())");
  }
  may_split = options.split_backward && parts;
  may_recompute = options.recompute && !costs.recompute.empty();
  limit = limits(options.memory_bytes, ranks);
  is_limited = *std::ranges::min_element(limit) < kInfinite;
  may_offload = options.offload && is_limited && costs.host_bandwidth > 0 &&
                !costs.activation_bytes.empty();

  const Schedule all = probe(*this);
  const Engine engine(all, costs);
  durations = engine.durations();
  links = engine.links().size();

  StageBytes bytes(costs, size(stages));
  resident.resize(size(ranks));
  for (int s = 0; s < stages; ++s) {
    resident[rank_of[s]] += bytes.resident[s];
  }
  activation = std::move(bytes.activation);
  input = std::move(bytes.input);
  weight = std::move(bytes.weight);
  offload = std::move(bytes.offload);
}

bool Problem::allows(CellMode mode, int stage) const {
  const auto s = size(stage);
  switch (mode) {
    case CellMode::kKeep:
      return true;
    case CellMode::kRecompute:
      return may_recompute && input[s] < activation[s];
    case CellMode::kOffload:
      return may_offload && offload[s] > 0;
  }
  return false;
}

double Problem::taken_by(const Action& action, CellMode mode) const {
  const auto s = size(action.stage);
  if (action.kind == ActionKind::kForward) {
    return mode == CellMode::kRecompute ? input[s] : activation[s];
  }
  return action.kind == ActionKind::kRecompute ? activation[s] : 0;
}

double Problem::freed_by(const Action& action, CellMode mode) const {
  const auto s = size(action.stage);
  const double kept = mode == CellMode::kRecompute ? input[s] : 0;
  switch (action.kind) {
    case ActionKind::kBackwardInput:
      return activation[s] - weight[s];
    case ActionKind::kBackward:
      return activation[s] + kept;
    case ActionKind::kBackwardWeight:
      return weight[s] + kept;
    default:
      return 0;
  }
}

double Problem::lower_bound() const {
  const auto seconds = [&](int s, ActionKind kind) {
    return durations.of({s, kind, 0});
  };
  const auto gradient = [&](int s) {
    const double whole = seconds(s, ActionKind::kBackward);
    return may_split ? std::min(whole, seconds(s, ActionKind::kBackwardInput))
                     : whole;
  };
  const auto copy = [](const Route& route) { return route.wire + route.delay; };

  // `head`: seconds until the first input of each stage arrives. `tail`:
  // seconds from the end of its last B or I until the first stage's backward
  // has ended.
  std::vector<double> head(size(stages)), tail(size(stages));
  double there = 0, back = 0;
  for (int s = 0; s < stages; ++s) {
    head[s] = there;
    there += seconds(s, ActionKind::kForward) + copy(durations.forward[s]);
    tail[s] = back + copy(durations.backward[s]);
    back = tail[s] + gradient(s);
  }
  double bound = there + back;
  for (const auto& own : stages_of) {
    double forward = 0, backward = 0;
    for (const int s : own) {
      double b = seconds(s, ActionKind::kBackward);
      if (may_split) {
        b = std::min(b, seconds(s, ActionKind::kBackwardInput) +
                            seconds(s, ActionKind::kBackwardWeight));
      }
      forward += microbatches * seconds(s, ActionKind::kForward);
      backward += microbatches * b;
    }
    const double hidden = durations.overlap * std::min(forward, backward);
    // The last action may be a W, for which no other action waits.
    const double last = may_split ? 0 : tail[own.front()];
    bound =
        std::max(bound, head[own.front()] + forward + backward - hidden + last);
  }
  return bound;
}

}  // namespace gpipe::internal
