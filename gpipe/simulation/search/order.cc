#include "gpipe/simulation/search/order.h"

#include <algorithm>
#include <cstddef>

namespace gpipe::internal {
namespace {

constexpr double kPending = -1;
constexpr int kNone = -1;

bool begins_backward(const Action& action) {
  return action.kind == ActionKind::kBackward ||
         action.kind == ActionKind::kBackwardInput;
}

}  // namespace

Order order_of(const Schedule& schedule, const Problem& problem) {
  Order order;
  order.recomputed.assign(size(problem.cells()), 0);
  for (const auto& actions : schedule.ranks) {
    auto& steps = order.ranks.emplace_back();
    for (std::size_t k = 0; k < actions.size(); ++k) {
      Block step{actions[k], {}};
      if (step.first.kind == ActionKind::kRecompute) {
        step.first.fused_with_next = false;
        order.recomputed[size(problem.cell(step.first))] = 1;
      }
      if (step.is_pair()) step.second = actions[++k];
      steps.push_back(step);
    }
  }
  return order;
}

Schedule schedule_of(const Order& order) {
  Schedule schedule;
  for (const auto& steps : order.ranks) {
    auto& actions = schedule.ranks.emplace_back();
    for (const Block& step : steps) {
      actions.push_back(step.first);
      if (step.is_pair()) actions.push_back(step.second);
    }
  }
  return schedule;
}

double peak_bytes(const Order& order, int rank, const Problem& problem) {
  double now = problem.resident[size(rank)], peak = now;
  const auto add = [&](double bytes) {
    now += bytes;
    peak = std::max(peak, now);
  };
  const auto recomputed = [&](const Action& action) {
    return order.recomputed[size(problem.cell(action))] != 0;
  };
  for (const Block& step : order.ranks[size(rank)]) {
    const Action &a = step.first, &b = step.second;
    add(problem.taken_by(a, recomputed(a)));
    if (step.is_pair()) add(problem.taken_by(b, recomputed(b)));
    add(-problem.freed_by(a, recomputed(a)));
    if (step.is_pair()) add(-problem.freed_by(b, recomputed(b)));
  }
  return peak;
}

bool fits(const Order& order, const Problem& problem) {
  for (int r = 0; r < problem.ranks; ++r) {
    if (peak_bytes(order, r, problem) > problem.limit[size(r)]) return false;
  }
  return true;
}

// ---- OrderSimulator

OrderSimulator::OrderSimulator(const Problem& problem)
    : problem_(problem),
      slots_(2 * size(problem.cells())),
      link_free_(problem.links) {}

// Returns the slot of an F, or of a B or I. Returns kNone for other actions,
// for which no other stage waits.
int OrderSimulator::slot_of(const Action& action) const {
  if (action.kind == ActionKind::kForward) return 2 * problem_.cell(action);
  return begins_backward(action) ? 2 * problem_.cell(action) + 1 : kNone;
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
  Slot& slot = slots_[size(found)];
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
  Slot& slot = slots_[size(found)];
  const auto& routes = action.kind == ActionKind::kForward
                           ? problem_.durations.forward
                           : problem_.durations.backward;
  const Route& route = routes[size(action.stage)];
  slot.made_by = place;
  slot.arrival = end;
  if (route.link >= 0) {
    double& free = link_free_[size(route.link)];
    free = std::max(end, free) + route.wire;
    slot.arrival = free + route.delay;
  }
  if (slot.waiter != kNone) awake_.push_back(slot.waiter);
}

bool OrderSimulator::run(const Order& order, Times* times) {
  std::fill(slots_.begin(), slots_.end(), Slot{kPending, kNone, {}});
  std::fill(link_free_.begin(), link_free_.end(), 0);
  times->ranks.resize(order.ranks.size());
  awake_.clear();
  for (int r = problem_.ranks; r-- > 0;) {
    times->ranks[size(r)].clear();
    awake_.push_back(r);
  }
  while (!awake_.empty()) {
    const int rank = awake_.back();
    awake_.pop_back();
    const auto& steps = order.ranks[size(rank)];
    auto& done = times->ranks[size(rank)];
    while (done.size() < steps.size()) {
      const Block& step = steps[done.size()];
      BlockTime time;
      if (!wait_for(step.first, rank, &time)) break;
      if (step.is_pair() && !wait_for(step.second, rank, &time)) break;
      time.start = std::max(time.ready, done.empty() ? 0 : done.back().end);
      const double a = problem_.durations.of(step.first);
      time.end = time.start + a;
      if (step.is_pair()) {
        const double b = problem_.durations.of(step.second);
        time.end =
            time.start + a + b - problem_.durations.overlap * std::min(a, b);
      }
      const Position place{rank, static_cast<int>(done.size())};
      done.push_back(time);
      finish(step.first, place, time.end);
      if (step.is_pair()) finish(step.second, place, time.end);
    }
  }
  times->makespan = 0;
  for (std::size_t r = 0; r < order.ranks.size(); ++r) {
    const auto& done = times->ranks[r];
    if (done.size() < order.ranks[r].size()) return false;
    if (!done.empty()) {
      times->makespan = std::max(times->makespan, done.back().end);
    }
  }
  return true;
}

}  // namespace gpipe::internal
