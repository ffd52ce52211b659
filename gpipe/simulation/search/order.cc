#include "gpipe/simulation/search/order.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

namespace gpipe::internal {
namespace {

constexpr double kPending = -1;
constexpr int kNone = -1;

// Returns whether `action` is the forward of a cell that is offloaded.
bool is_offloaded(const Order& order, const Action& action,
                  const Problem& problem) {
  return action.kind == ActionKind::kForward &&
         order.modes[problem.cell(action)] == CellMode::kOffload;
}

}  // namespace

Order order_of(const Schedule& schedule, const Problem& problem) {
  Order order;
  order.modes.assign(size(problem.cells()), CellMode::kKeep);
  for (const auto& actions : schedule.ranks) {
    auto& steps = order.ranks.emplace_back();
    for (std::size_t k = 0; k < actions.size(); ++k) {
      Block step{actions[k], {}};
      if (step.first.kind == ActionKind::kOffload) {
        order.modes[problem.cell(step.first)] = CellMode::kOffload;
        continue;
      }
      if (step.first.kind == ActionKind::kRecompute) {
        step.first.fused_with_next = false;
        order.modes[problem.cell(step.first)] = CellMode::kRecompute;
      }
      if (step.is_pair()) step.second = actions[++k];
      steps.push_back(step);
    }
  }
  return order;
}

Schedule schedule_of(const Order& order, const Problem& problem) {
  Schedule schedule;
  for (const auto& steps : order.ranks) {
    auto& actions = schedule.ranks.emplace_back();
    for (const Block& step : steps) {
      actions.push_back(step.first);
      if (step.is_pair()) actions.push_back(step.second);
      const auto offload = [&](const Action& action) {
        if (!is_offloaded(order, action, problem)) return;
        actions.push_back(
            {action.stage, ActionKind::kOffload, action.microbatch});
      };
      offload(step.first);
      if (step.is_pair()) offload(step.second);
    }
  }
  return schedule;
}

bool has_copies(const Order& order, int rank) {
  const auto& steps = order.ranks[rank];
  return std::ranges::any_of(steps, [](const Block& step) {
    return step.first.kind == ActionKind::kReload;
  });
}

double peak_bytes(const Order& order, int rank, const Problem& problem) {
  double now = problem.resident[rank], peak = now;
  const auto add = [&](double bytes) {
    now += bytes;
    peak = std::max(peak, now);
  };
  const auto mode = [&](const Action& action) {
    return order.modes[problem.cell(action)];
  };
  for (const Block& step : order.ranks[rank]) {
    const Action &a = step.first, &b = step.second;
    add(problem.taken_by(a, mode(a)));
    if (step.is_pair()) add(problem.taken_by(b, mode(b)));
    add(-problem.freed_by(a, mode(a)));
    if (step.is_pair()) add(-problem.freed_by(b, mode(b)));
  }
  return peak;
}

bool fits(const Order& order, const Problem& problem) {
  for (int r = 0; r < problem.ranks; ++r) {
    if (problem.may_offload && has_copies(order, r)) continue;
    if (peak_bytes(order, r, problem) > problem.limit[r]) return false;
  }
  return true;
}

bool fits(const Times& times, const Problem& problem) {
  for (int r = 0; r < problem.ranks; ++r) {
    if (times.peak_bytes[r] > problem.limit[r]) return false;
  }
  return true;
}

// ---- OrderSimulator

OrderSimulator::OrderSimulator(const Problem& problem)
    : problem_(problem),
      slots_(2 * size(problem.cells())),
      link_free_(problem.links),
      ranks_(size(problem.ranks)),
      copied_(size(problem.cells())),
      away_(size(problem.cells())) {}

// Returns the slot of an F, or of a B or I. Returns kNone for other actions,
// for which no other stage waits.
int OrderSimulator::slot_of(const Action& action) const {
  if (action.kind == ActionKind::kForward) return 2 * problem_.cell(action);
  return begins_backward(action.kind) ? 2 * problem_.cell(action) + 1 : kNone;
}

// Returns the slot of the action that `action` needs from another stage; kNone
// if it needs none.
int OrderSimulator::slot_of_need(const Action& action) const {
  Action need = action;
  if (action.kind == ActionKind::kForward) {
    --need.stage;
  } else {
    ++need.stage;
  }
  const bool exists = need.stage >= 0 && need.stage < problem_.stages;
  return exists ? slot_of(need) : kNone;
}

// Adds the input from another stage to `time`. Returns false, and lets `rank`
// wait, if that input has not been made. Inputs from the action's own stage
// need no check, since they are earlier on the same rank.
bool OrderSimulator::wait_for(const Action& action, int rank, BlockTime* time) {
  const int found = slot_of_need(action);
  if (found == kNone) return true;
  Slot& slot = slots_[found];
  if (slot.arrival == kPending) {
    slot.waiter = rank;
    return false;
  }
  if (time->last.rank < 0 || slot.arrival > time->ready) {
    time->ready = slot.arrival;
    time->last = slot.made_by;
  }
  return true;
}

// Records that `action` ends at `end`, sends its output and wakes the rank that
// waits for it.
void OrderSimulator::finish(const Action& action, Position place, double end) {
  const int found = slot_of(action);
  if (found == kNone) return;
  Slot& slot = slots_[found];
  const auto& routes = action.kind == ActionKind::kForward
                           ? problem_.durations.forward
                           : problem_.durations.backward;
  const Route& route = routes[action.stage];
  slot.made_by = place;
  slot.arrival = end;
  if (route.link >= 0) {
    double& free = link_free_[route.link];
    free = std::max(end, free) + route.wire;
    slot.arrival = free + route.delay;
  }
  if (slot.waiter != kNone) awake_.push_back(slot.waiter);
}

// Sets the times of a step of computation. Returns false, and lets `rank` wait,
// if an input has not been made.
bool OrderSimulator::begin(const Block& step, const Order& order, int rank,
                           BlockTime* time) {
  const Action &first = step.first, &second = step.second;
  if (!wait_for(first, rank, time)) return false;
  if (step.is_pair() && !wait_for(second, rank, time)) return false;
  time->start = std::max(time->ready, ranks_[rank].end);
  const auto wait_for_reload = [&](const Action& action) {
    if (!begins_backward(action.kind)) return;
    const auto cell = size(problem_.cell(action));
    if (order.modes[cell] != CellMode::kOffload) return;
    time->start = std::max(time->start, copied_[cell]);
  };
  wait_for_reload(first);
  if (step.is_pair()) wait_for_reload(second);
  const double a = problem_.durations.of(first);
  time->end = time->start + a;
  if (step.is_pair()) {
    const double b = problem_.durations.of(second);
    time->end =
        time->start + a + b - problem_.durations.overlap * std::min(a, b);
  }
  ranks_[rank].end = time->end;
  return true;
}

void OrderSimulator::reload(const Action& action, Rank& state,
                            BlockTime* time) {
  double& copied = copied_[problem_.cell(action)];
  time->start = std::max({state.end, state.from_host_free, copied});
  time->end = time->start + problem_.durations.of(action);
  copied = state.from_host_free = time->end;
}

// Begins the copy to the host after `action`, if there is one.
void OrderSimulator::offload(const Order& order, const Action& action,
                             Rank& state) {
  if (!is_offloaded(order, action, problem_)) return;
  const double seconds = problem_.durations.of(
      {action.stage, ActionKind::kOffload, action.microbatch});
  state.to_host_free = std::max(state.end, state.to_host_free) + seconds;
  const auto cell = size(problem_.cell(action));
  copied_[cell] = away_[cell] = state.to_host_free;
}

// Returns the most bytes that a rank holds at a time.
double OrderSimulator::peak_of(const Order& order, int rank,
                               const Times& times) {
  changes_.clear();
  const auto change = [&](double time, double bytes) {
    if (bytes == 0) return;
    changes_.push_back({time, bytes, static_cast<int>(changes_.size())});
  };
  const auto& steps = order.ranks[rank];
  const auto& done = times.ranks[rank];
  const auto add_computation = [&](const Action& action, const BlockTime& at) {
    const CellMode mode = order.modes[problem_.cell(action)];
    change(at.start, problem_.taken_by(action, mode));
    change(at.end, -problem_.freed_by(action, mode));
  };
  for (std::size_t k = 0; k < steps.size(); ++k) {
    if (steps[k].first.kind == ActionKind::kReload) continue;
    add_computation(steps[k].first, done[k]);
    if (steps[k].is_pair()) add_computation(steps[k].second, done[k]);
  }
  for (std::size_t k = 0; k < steps.size(); ++k) {
    const Action& action = steps[k].first;
    if (action.kind != ActionKind::kReload) continue;
    const double bytes = problem_.offload[action.stage];
    change(away_[problem_.cell(action)], -bytes);
    change(done[k].start, bytes);
  }
  std::ranges::sort(changes_, {}, [](const Change& each) {
    return std::tuple(each.time, each.bytes > 0, each.number);
  });
  double now = problem_.resident[rank], peak = now;
  for (const Change& each : changes_) {
    now += each.bytes;
    peak = std::max(peak, now);
  }
  return peak;
}

bool OrderSimulator::run(const Order& order, Times* times) {
  std::fill(slots_.begin(), slots_.end(), Slot{kPending, kNone, {}});
  std::fill(ranks_.begin(), ranks_.end(), Rank());
  std::fill(link_free_.begin(), link_free_.end(), 0);
  times->ranks.resize(order.ranks.size());
  awake_.clear();
  for (int r = problem_.ranks; r-- > 0;) {
    times->ranks[r].clear();
    awake_.push_back(r);
  }
  while (!awake_.empty()) {
    const int rank = awake_.back();
    awake_.pop_back();
    const auto& steps = order.ranks[rank];
    auto& done = times->ranks[rank];
    while (done.size() < steps.size()) {
      const Block& step = steps[done.size()];
      Rank& state = ranks_[rank];
      BlockTime time;
      if (step.first.kind == ActionKind::kReload) {
        reload(step.first, state, &time);
        done.push_back(time);
        continue;
      }
      if (!begin(step, order, rank, &time)) break;
      const Position place{rank, static_cast<int>(done.size())};
      done.push_back(time);
      finish(step.first, place, time.end);
      offload(order, step.first, state);
      if (!step.is_pair()) continue;
      finish(step.second, place, time.end);
      offload(order, step.second, state);
    }
  }
  times->makespan = 0;
  times->peak_bytes.assign(order.ranks.size(), 0);
  for (int r = 0; r < problem_.ranks; ++r) {
    if (times->ranks[r].size() < order.ranks[r].size()) {
      return false;
    }
    times->makespan = std::max(times->makespan, ranks_[r].end);
    if (problem_.may_offload && has_copies(order, r)) {
      times->peak_bytes[r] = peak_of(order, r, *times);
    }
  }
  return true;
}

}  // namespace gpipe::internal
