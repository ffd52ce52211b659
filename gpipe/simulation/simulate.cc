#include "gpipe/simulation/simulate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpipe/schedule/needs.h"

namespace gpipe {
namespace {

constexpr int kKinds = 5;

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

std::pair<const char*, const std::vector<double>*> list_of(const Costs& costs,
                                                           Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return {"forward", &costs.forward};
    case Kind::kBackward:
      return {"backward", &costs.backward};
    case Kind::kBackwardInput:
      return {"backward_input", &costs.backward_input};
    case Kind::kBackwardWeight:
      return {"backward_weight", &costs.backward_weight};
    case Kind::kRecompute:
      break;
  }
  return {"recompute", &costs.recompute};
}

double cost_of(const Costs& costs, const Action& action) {
  const auto [name, list] = list_of(costs, action.kind);
  if (action.stage < 0 ||
      static_cast<std::size_t>(action.stage) >= list->size()) {
    refuse("there is no ", name, " cost of stage ", action.stage, ", which ",
           to_string(action), " needs (costs: ", list->size(), ")");
  }
  const double cost = (*list)[action.stage];
  if (!std::isfinite(cost) || cost < 0) {
    refuse("the ", name, " cost of stage ", action.stage, " is ", cost,
           ": costs must be finite and not negative");
  }
  return cost;
}

// What is known of each action of a schedule.
class Actions {
 public:
  struct Entry {
    int rank = -1;  // -1: not in the schedule
    std::optional<double> end;
  };

  explicit Actions(const Schedule& schedule) {
    for (const auto& rank : schedule.ranks) {
      for (const Action& action : rank) {
        if (action.stage < 0 || action.microbatch < 0) {
          refuse("an action has the stage ", action.stage,
                 " and the micro-batch ", action.microbatch,
                 ": both count from 0");
        }
        stages_ = std::max(stages_, action.stage + 1);
        microbatches_ = std::max(microbatches_, action.microbatch + 1);
      }
    }
    entries_.resize(static_cast<std::size_t>(stages_) * kKinds * microbatches_);
    for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
      for (const Action& action : schedule.ranks[r]) {
        Entry& entry = *find(action);
        if (entry.rank >= 0) {
          refuse(to_string(action), " is in the schedule twice, on rank ",
                 entry.rank, " and on rank ", r);
        }
        entry.rank = static_cast<int>(r);
      }
    }
  }

  // Null for what cannot be in the schedule.
  Entry* find(const Action& action) {
    if (action.stage < 0 || action.stage >= stages_) return nullptr;
    const std::size_t row = static_cast<std::size_t>(action.stage) * kKinds +
                            static_cast<std::size_t>(action.kind);
    return &entries_[row * microbatches_ + action.microbatch];
  }

 private:
  int stages_ = 0, microbatches_ = 0;
  std::vector<Entry> entries_;
};

// When `action` may start on `rank` as far as others are concerned; none if
// that is not known yet.
std::optional<double> ready(Actions& actions, const Action& action, int rank,
                            double latency) {
  double time = 0;
  for (const Action& need : needs(action)) {
    const Actions::Entry* entry = actions.find(need);
    if (!entry || entry->rank < 0) continue;
    if (!entry->end) return std::nullopt;
    time = std::max(time, *entry->end + (entry->rank == rank ? 0 : latency));
  }
  return time;
}

// Forwards that have begun without their backward having ended.
int peak_in_flight(const std::vector<Span>& spans) {
  const bool splits =
      std::any_of(spans.begin(), spans.end(), [](const Span& span) {
        return span.action.kind == Kind::kBackwardWeight;
      });
  int now = 0, peak = 0;
  for (const Span& span : spans) {
    const Kind kind = span.action.kind;
    if (kind == Kind::kForward) peak = std::max(peak, ++now);
    const bool last = kind == Kind::kBackward ||
                      kind == Kind::kBackwardWeight ||
                      (kind == Kind::kBackwardInput && !splits);
    if (last) --now;
  }
  return peak;
}

}  // namespace

Timeline simulate(const Schedule& schedule, const Costs& costs) {
  if (!std::isfinite(costs.latency) || costs.latency < 0) {
    refuse("the latency is ", costs.latency,
           ": it must be finite and not negative");
  }
  Actions actions(schedule);
  Timeline timeline;
  timeline.ranks.resize(schedule.ranks.size());
  bool moved = true;
  while (std::exchange(moved, false)) {
    for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
      auto& spans = timeline.ranks[r];
      while (spans.size() < schedule.ranks[r].size()) {
        const Action& action = schedule.ranks[r][spans.size()];
        const auto time =
            ready(actions, action, static_cast<int>(r), costs.latency);
        if (!time) break;
        const double start =
            std::max(*time, spans.empty() ? 0.0 : spans.back().end);
        spans.push_back({action, start, start + cost_of(costs, action)});
        actions.find(action)->end = spans.back().end;
        moved = true;
      }
    }
  }

  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    const auto& spans = timeline.ranks[r];
    if (spans.size() < schedule.ranks[r].size()) {
      refuse("the schedule cannot be executed: ",
             to_string(schedule.ranks[r][spans.size()]), " of rank ", r,
             " waits for an action that never ends");
    }
    if (!spans.empty()) {
      timeline.makespan = std::max(timeline.makespan, spans.back().end);
    }
  }
  double idle = 0;
  for (const auto& spans : timeline.ranks) {
    double work = 0;
    for (const Span& span : spans) work += span.end - span.start;
    timeline.idle.push_back(timeline.makespan - work);
    timeline.peak_in_flight.push_back(peak_in_flight(spans));
    idle += timeline.idle.back();
  }
  if (timeline.makespan > 0) {
    timeline.bubble_fraction =
        idle / (timeline.makespan * static_cast<double>(timeline.ranks.size()));
  }
  return timeline;
}

}  // namespace gpipe
