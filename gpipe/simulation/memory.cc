#include "gpipe/simulation/memory.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

internal::HeldParts internal::HeldRule::taken_by(const Action& action) const {
  if (action.kind == ActionKind::kRecompute) return {.activation = 1};
  if (action.kind != ActionKind::kForward) return {};
  if (has(action, ActionKind::kRecompute)) return {.input = 1};
  return {.activation = 1};
}

internal::HeldParts internal::HeldRule::freed_by(const Action& action) const {
  const int input = has(action, ActionKind::kRecompute) ? 1 : 0;
  switch (action.kind) {
    case ActionKind::kBackwardInput:
      // A W needs a part of the activations.
      if (has(action, ActionKind::kBackwardWeight)) {
        return {.activation = 1, .weight = -1};
      }
      [[fallthrough]];
    case ActionKind::kBackward:
      return {.input = input, .activation = 1};
    case ActionKind::kBackwardWeight:
      return {.input = input, .weight = 1};
    default:
      return {};
  }
}

namespace {

// The bytes of Costs for stages below `stages`. An empty list of Costs is
// replaced by what it means. Throws std::invalid_argument, with the name of the
// list, if a list is not empty but lacks a stage.
struct StageBytes {
  StageBytes(const Costs& costs, std::size_t stages) {
    const auto list = [&](const char* name, const std::vector<double>& bytes,
                          const std::vector<double>& otherwise) {
      if (bytes.empty()) return otherwise;
      if (bytes.size() < stages) {
        internal::refuse("there is no ", name, " cost of stage ", bytes.size(),
                         " (stages: ", stages,
                         "): give one for each stage, or none at all");
      }
      return bytes;
    };
    const std::vector<double> none(stages);
    resident = list("resident_bytes", costs.resident_bytes, none);
    activation = list("activation_bytes", costs.activation_bytes, none);
    input = list("input_bytes", costs.input_bytes, none);
    weight = list("weight_activation_bytes", costs.weight_activation_bytes,
                  activation);
    offload = list("offload_bytes", costs.offload_bytes, activation);
  }

  std::vector<double> resident, activation, input, weight, offload;
};

// The bytes that actions take and free.
class Memory {
 public:
  Memory(const Timeline& timeline, const Costs& costs)
      : rule_(internal::actions_of(timeline)), bytes_(costs, rule_.stages()) {}

  // Fills `points` for the spans and copies of one rank, and returns its peak
  // in bytes.
  double follow(const std::vector<Span>& spans,
                const std::vector<HostCopy>& copies,
                std::vector<MemoryPoint>* points) const {
    double now = at_first(spans), peak = now;
    points->push_back({0, now});
    for (const Change& change : changes(spans, copies)) {
      now += change.bytes;
      peak = std::max(peak, now);
      if (points->back().time < change.time)
        points->push_back({change.time, 0});
      points->back().bytes = now;
    }
    return peak;
  }

 private:
  // Bytes that are taken, or freed if negative, at a time. Changes at one time
  // are in the order of their turns, and of one turn those that free are first.
  // The turn is the number of spans of no duration that come before in the
  // schedule. It is 0 at the end of an action that has a duration.
  struct Change {
    double time = 0;
    std::size_t turn = 0;
    double bytes = 0;

    auto order() const { return std::tuple(time, turn, bytes > 0); }
  };

  std::vector<Change> changes(const std::vector<Span>& spans,
                              const std::vector<HostCopy>& copies) const {
    std::vector<Change> changes;
    changes.reserve(2 * spans.size() + copies.size());
    const auto free = [&](const auto& action, std::size_t turn, double bytes) {
      if (action.start < action.end) turn = 0;
      changes.push_back({action.end, turn, -bytes});
    };
    std::vector<std::size_t> turns = {0};  // by place
    for (const Span& span : spans) {
      const std::size_t turn = turns.back();
      turns.push_back(turn + (span.start < span.end ? 0 : 1));
      const double takes = taken_by(span.action), frees = freed_by(span.action);
      if (takes != 0) changes.push_back({span.start, turn, takes});
      if (frees != 0) free(span, turns.back(), frees);
    }
    for (const HostCopy& copy : copies) {
      const std::size_t turn = turns[std::min(copy.place, spans.size())];
      const double bytes = bytes_.offload[copy.action.stage];
      if (copy.action.kind == ActionKind::kOffload) {
        free(copy, turn, bytes);
      } else if (is_away_before(copy.action)) {
        changes.push_back({copy.start, turn, bytes});
      }
    }
    if (!std::ranges::is_sorted(changes, {}, &Change::order)) {
      std::ranges::stable_sort(changes, {}, &Change::order);
    }
    return changes;
  }

  // Returns whether the cell's `offload_bytes` are on the host before its L:
  // they went there by its O, or before the beginning.
  bool is_away_before(const Action& cell) const {
    return rule_.has(cell, ActionKind::kOffload) ||
           !rule_.has(cell, ActionKind::kForward);
  }

  double bytes_of(const internal::HeldParts& parts, int stage) const {
    return parts.activation * bytes_.activation[stage] +
           parts.weight * bytes_.weight[stage] +
           parts.input * bytes_.input[stage];
  }

  double taken_by(const Action& action) const {
    return bytes_of(rule_.taken_by(action), action.stage);
  }

  double freed_by(const Action& action) const {
    const internal::HeldParts parts = rule_.freed_by(action);
    // An O without L leaves its part of the activations on the host.
    const bool is_away = parts.activation > 0 &&
                         rule_.has(action, ActionKind::kOffload) &&
                         !rule_.has(action, ActionKind::kReload);
    return bytes_of(parts, action.stage) -
           (is_away ? bytes_.offload[action.stage] : 0);
  }

  // Returns the bytes that are held for `action` from the beginning, because
  // the actions that take them are not in the schedule.
  double left_for(const Action& action) const {
    if (rule_.has(action, ActionKind::kForward)) return 0;
    const bool recomputed = rule_.has(action, ActionKind::kRecompute);
    const double forward =
        taken_by({action.stage, ActionKind::kForward, action.microbatch});
    const bool is_away = rule_.has(action, ActionKind::kReload) &&
                         !rule_.has(action, ActionKind::kOffload);
    switch (action.kind) {
      case ActionKind::kRecompute:
        return forward;
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        return recomputed
                   ? 0
                   : forward - (is_away ? bytes_.offload[action.stage] : 0);
      case ActionKind::kBackwardWeight:
        return recomputed || rule_.has(action, ActionKind::kBackwardInput)
                   ? 0
                   : freed_by(action);
      default:
        return 0;
    }
  }

  // Returns the bytes that a rank holds at the beginning.
  double at_first(const std::vector<Span>& spans) const {
    double bytes = 0;
    std::vector<char> counted(rule_.stages());
    for (const Span& span : spans) {
      char& is_counted = counted[span.action.stage];
      if (!is_counted) bytes += bytes_.resident[span.action.stage];
      is_counted = 1;
      bytes += left_for(span.action);
    }
    return bytes;
  }

  const internal::HeldRule rule_;
  const StageBytes bytes_;
};

}  // namespace

Timeline with_memory(Timeline timeline, const Costs& costs) {
  check_costs(costs);
  if (!internal::has_memory(costs)) return timeline;
  const Memory memory(timeline, costs);
  timeline.memory.assign(timeline.ranks.size(), {});
  timeline.peak_bytes.clear();
  for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
    static const std::vector<HostCopy> kNone;
    const auto& copies =
        timeline.host_copies.empty() ? kNone : timeline.host_copies[r];
    timeline.peak_bytes.push_back(
        memory.follow(timeline.ranks[r], copies, &timeline.memory[r]));
  }
  return timeline;
}

}  // namespace gpipe
