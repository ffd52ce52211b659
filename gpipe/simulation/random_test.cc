// Compares the simulator with a slow and simple one on random schedules: stages
// on any rank, backwards whole or in two parts, early and late recomputes,
// overlapped pairs, links, copies to and from the host, and parts of schedules.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/bottlenecks.h"
#include "gpipe/simulation/simulate.h"

namespace gpipe {
namespace {

// Returns whether `a` must have ended before `b` starts.
bool comes_before(const Action& a, const Action& b) {
  if (a.microbatch != b.microbatch) return false;
  const auto is = [](const Action& action, ActionKind kind) {
    return action.kind == kind;
  };
  if (a.stage == b.stage) {
    return (is(a, ActionKind::kForward) &&
            (is(b, ActionKind::kRecompute) ||
             internal::begins_backward(b.kind))) ||
           (is(a, ActionKind::kRecompute) &&
            (is(b, ActionKind::kOffload) ||
             internal::begins_backward(b.kind))) ||
           (is(a, ActionKind::kForward) && is(b, ActionKind::kOffload)) ||
           (is(a, ActionKind::kOffload) && is(b, ActionKind::kReload)) ||
           (is(a, ActionKind::kReload) && internal::begins_backward(b.kind)) ||
           (is(a, ActionKind::kBackwardInput) &&
            is(b, ActionKind::kBackwardWeight));
  }
  return (is(a, ActionKind::kForward) && is(b, ActionKind::kForward) &&
          a.stage + 1 == b.stage) ||
         (internal::begins_backward(a.kind) &&
          internal::begins_backward(b.kind) && a.stage == b.stage + 1);
}

// A source of random schedules and costs.
class Draw {
 public:
  explicit Draw(int seed) : random_(seed) {}

  int number(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }

  bool chance() { return number(0, 1) == 1; }

  // Returns a schedule, or a part of one, in an order that can be executed.
  Schedule schedule() {
    Schedule schedule;
    schedule.ranks.resize(number(1, 4));
    const int stages = number(1, 5), microbatches = number(1, 5);
    std::vector<std::size_t> rank_of;
    for (int s = 0; s < stages; ++s) {
      rank_of.push_back(number(0, static_cast<int>(schedule.ranks.size()) - 1));
    }
    std::vector<Action> left = all_actions(stages, microbatches);
    // With some probability, drops actions at the beginning or at the end.
    std::size_t drop = chance() ? 0 : number(0, static_cast<int>(left.size()));
    const bool from_front = chance();
    while (!left.empty()) {
      if (!from_front && left.size() <= drop) break;
      std::vector<Action> ready;
      for (const Action& b : left) {
        if (std::none_of(left.begin(), left.end(),
                         [&](const Action& a) { return comes_before(a, b); })) {
          ready.push_back(b);
        }
      }
      Action action = ready[number(0, static_cast<int>(ready.size()) - 1)];
      std::vector<Action> block = {action};
      for (const Action& other : ready) {
        const bool pair = (action.kind == ActionKind::kForward &&
                           internal::begins_backward(other.kind)) ||
                          (other.kind == ActionKind::kForward &&
                           internal::begins_backward(action.kind));
        if (pair && rank_of[other.stage] == rank_of[action.stage] && chance()) {
          block.push_back(other);
          break;
        }
      }
      if (action.kind == ActionKind::kRecompute) {
        // Adds its backward to the block, if that waits for nothing else.
        for (const Action& b : left) {
          if (!comes_before(action, b) || !internal::begins_backward(b.kind) ||
              !chance()) {
            continue;
          }
          if (std::count_if(left.begin(), left.end(), [&](const Action& a) {
                return comes_before(a, b);
              }) == 1) {
            block.push_back(b);
          }
        }
      }
      block[0].fused_with_next = block.size() > 1;
      for (const Action& each : block) {
        left.erase(std::find_if(left.begin(), left.end(), [&](Action a) {
          a.fused_with_next = each.fused_with_next;
          return a == each;
        }));
      }
      if (from_front && drop > 0) {
        drop -= std::min(drop, block.size());
        continue;
      }
      auto& actions = schedule.ranks[rank_of[action.stage]];
      actions.insert(actions.end(), block.begin(), block.end());
    }
    return schedule;
  }

  // Returns multiples of 0.5 (seconds or bytes), so that sums are exact.
  std::vector<double> list(int least) {
    std::vector<double> list;
    for (int s = 0; s < 5; ++s) list.push_back(number(2 * least, 8) / 2.0);
    return list;
  }

  // Returns for each of `wholes` a random part of it.
  std::vector<double> parts(std::vector<double> wholes) {
    for (double& bytes : wholes) {
      bytes = number(0, static_cast<int>(2 * bytes)) / 2.0;
    }
    return wholes;
  }

  // Returns random costs. `least`: the least seconds of an action.
  Costs costs(int least) {
    Costs costs;
    costs.forward = list(least);
    costs.backward = list(least);
    costs.backward_input = list(least);
    costs.backward_weight = list(least);
    costs.recompute = list(least);
    costs.latency = chance() ? 0 : number(0, 4) / 2.0;
    costs.bandwidth = chance() ? 0 : 1 << number(0, 2);
    costs.boundary_bytes = list(0);
    costs.overlap = number(0, 4) / 4.0;
    costs.resident_bytes = list(0);
    costs.activation_bytes = list(0);
    costs.input_bytes = list(0);
    if (chance()) costs.weight_activation_bytes = list(0);
    costs.host_bandwidth = chance() ? 0 : 1 << number(0, 2);
    if (chance()) costs.offload_bytes = parts(costs.activation_bytes);
    return costs;
  }

 private:
  std::vector<Action> all_actions(int stages, int microbatches) {
    std::vector<Action> all;
    for (int s = 0; s < stages; ++s) {
      for (int i = 0; i < microbatches; ++i) {
        all.push_back({s, ActionKind::kForward, i});
        if (chance()) all.push_back({s, ActionKind::kRecompute, i});
        const bool splits = chance();
        all.push_back(
            {s, splits ? ActionKind::kBackwardInput : ActionKind::kBackward,
             i});
        if (splits) all.push_back({s, ActionKind::kBackwardWeight, i});
        if (number(0, 2) > 0) continue;
        all.push_back({s, ActionKind::kOffload, i});
        all.push_back({s, ActionKind::kReload, i});
      }
    }
    return all;
  }

  std::mt19937 random_;
};

// A simple simulator. It updates the times of all actions until none changes.
class Reference {
 public:
  Reference(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule), costs_(costs) {
    for (const auto& actions : schedule.ranks) {
      starts_.emplace_back(actions.size());
      ends_.emplace_back(actions.size());
      arrivals_.emplace_back(actions.size());
    }
    while (true) {
      const auto before = std::pair(ends_, arrivals_);
      for (std::size_t r = 0; r < starts_.size(); ++r) place(r);
      for (std::size_t from = 0; from < starts_.size(); ++from) {
        for (std::size_t to = 0; to < starts_.size(); ++to) send(from, to);
      }
      if (before == std::pair(ends_, arrivals_)) break;
    }
  }

  const std::vector<std::vector<double>>& starts() const { return starts_; }
  const std::vector<std::vector<double>>& ends() const { return ends_; }

  // Returns the bytes that a rank holds from `time` on, until the next change.
  double bytes(std::size_t rank, double time) const {
    std::map<int, bool> stages;
    std::map<std::pair<int, int>, bool> cells;
    for (const Action& action : schedule_.ranks[rank]) {
      stages[action.stage] = true;
      cells[{action.stage, action.microbatch}] = true;
    }
    double sum = 0;
    for (const auto& [stage, is_there] : stages) {
      sum += costs_.resident_bytes[stage];
    }
    const auto& weights = costs_.weight_activation_bytes.empty()
                              ? costs_.activation_bytes
                              : costs_.weight_activation_bytes;
    for (const auto& [cell, is_there] : cells) {
      const int s = cell.first, i = cell.second;
      // Times of the cell's actions. `none`: the time if there is no such
      // action.
      const double never = 1e9, always = -1;
      const auto begin = [&](ActionKind kind, double none) {
        const auto span = find(rank, {s, kind, i});
        return span ? span->first : none;
      };
      const auto end = [&](ActionKind kind, double none) {
        const auto span = find(rank, {s, kind, i});
        return span ? span->second : none;
      };
      const double forward = begin(ActionKind::kForward, always);
      const bool recomputed =
          find(rank, {s, ActionKind::kRecompute, i}).has_value();
      const double activations =
          recomputed ? begin(ActionKind::kRecompute, 0) : forward;
      const bool splits =
          find(rank, {s, ActionKind::kBackwardWeight, i}).has_value();
      // If there is a W without an I, I counts as done before the beginning.
      const double whole =
          splits ? end(ActionKind::kBackwardInput, always)
                 : std::min(end(ActionKind::kBackward, never),
                            end(ActionKind::kBackwardInput, never));
      const double all =
          splits ? end(ActionKind::kBackwardWeight, never) : whole;
      const auto holds = [&](double from, double until) {
        return from <= time && time < until;
      };
      if (recomputed && holds(forward, all)) sum += costs_.input_bytes[s];
      if (holds(activations, whole)) sum += costs_.activation_bytes[s];
      if (splits && holds(std::max(activations, whole), all)) sum += weights[s];
      // An O that is not in the schedule has ended before the beginning, unless
      // there is no L either.
      if (!find(rank, {s, ActionKind::kReload, i}) &&
          !find(rank, {s, ActionKind::kOffload, i})) {
        continue;
      }
      const double away = end(ActionKind::kOffload, always);
      const double back = begin(ActionKind::kReload, never);
      if (holds(away, back)) sum -= offload(s);
    }
    return sum;
  }

 private:
  double offload(int stage) const {
    return costs_.offload_bytes.empty() ? costs_.activation_bytes[stage]
                                        : costs_.offload_bytes[stage];
  }

  double seconds(const Action& action) const {
    switch (action.kind) {
      case ActionKind::kForward:
        return costs_.forward[action.stage];
      case ActionKind::kBackward:
        return costs_.backward[action.stage];
      case ActionKind::kBackwardInput:
        return costs_.backward_input[action.stage];
      case ActionKind::kBackwardWeight:
        return costs_.backward_weight[action.stage];
      case ActionKind::kRecompute:
        return costs_.recompute[action.stage];
      case ActionKind::kOffload:
      case ActionKind::kReload:
        break;
    }
    return costs_.host_bandwidth > 0
               ? offload(action.stage) / costs_.host_bandwidth
               : 0;
  }

  // Returns the start and end of an action, if the rank has it.
  std::optional<std::pair<double, double>> find(std::size_t rank,
                                                const Action& action) const {
    for (std::size_t k = 0; k < schedule_.ranks[rank].size(); ++k) {
      Action other = schedule_.ranks[rank][k];
      other.fused_with_next = false;
      if (other == action) return std::pair(starts_[rank][k], ends_[rank][k]);
    }
    return std::nullopt;
  }

  // Returns when all that `action` needs has arrived, except for actions
  // first..last of the rank, which are in its block.
  double needed(const Action& action, std::size_t rank, std::size_t first,
                std::size_t last) const {
    double time = 0;
    for (std::size_t r = 0; r < schedule_.ranks.size(); ++r) {
      for (std::size_t k = 0; k < schedule_.ranks[r].size(); ++k) {
        if (r == rank && k >= first && k <= last) continue;
        if (!comes_before(schedule_.ranks[r][k], action)) continue;
        time = std::max(time, r == rank ? ends_[r][k] : arrivals_[r][k]);
      }
    }
    return time;
  }

  void place(std::size_t r) {
    const auto& actions = schedule_.ranks[r];
    double free = 0;
    std::map<ActionKind, double> link_free;  // of O and L
    for (std::size_t k = 0; k < actions.size(); ++k) {
      const std::size_t last = actions[k].fused_with_next ? k + 1 : k;
      double start = std::max(free, needed(actions[k], r, k, last));
      const double a = seconds(actions[k]);
      if (!is_compute(actions[k].kind)) {
        double& link = link_free[actions[k].kind];
        starts_[r][k] = std::max(start, link);
        link = ends_[r][k] = starts_[r][k] + a;
        continue;
      }
      if (last == k) {
        starts_[r][k] = start;
        free = ends_[r][k] = start + a;
        continue;
      }
      start = std::max(start, needed(actions[last], r, k, last));
      const double b = seconds(actions[last]);
      starts_[r][k] = starts_[r][last] = start;
      if (actions[k].kind == ActionKind::kRecompute) {
        ends_[r][k] = starts_[r][last] = start + a;
        free = ends_[r][last] = start + a + b;
      } else {
        free = ends_[r][k] = ends_[r][last] =
            start + std::max(a, b) + (1 - costs_.overlap) * std::min(a, b);
      }
      ++k;
    }
  }

  // Sets the arrivals of all copies over a link, in the order in which their
  // actions end.
  void send(std::size_t from, std::size_t to) {
    if (from == to) return;
    double free = 0;
    for (std::size_t k = 0; k < schedule_.ranks[from].size(); ++k) {
      const Action& action = schedule_.ranks[from][k];
      const bool is_used = std::any_of(
          schedule_.ranks[to].begin(), schedule_.ranks[to].end(),
          [&](const Action& other) { return comes_before(action, other); });
      if (!is_used) continue;
      const int boundary =
          action.kind == ActionKind::kForward ? action.stage : action.stage - 1;
      free = std::max(free, ends_[from][k]);
      if (costs_.bandwidth > 0) {
        free += costs_.boundary_bytes[boundary] / costs_.bandwidth;
      }
      arrivals_[from][k] = free + costs_.latency;
    }
  }

  const Schedule& schedule_;
  const Costs& costs_;
  std::vector<std::vector<double>> starts_, ends_, arrivals_;
};

constexpr int kDraws = 3000;

TEST(RandomScheduleTest, TimesAreThoseOfAPlainSimulation) {
  std::size_t pairs = 0, late = 0, transfers = 0, host_copies = 0;
  for (int seed = 0; seed < kDraws; ++seed) {
    Draw draw(seed);
    const Schedule schedule = draw.schedule();
    const Costs costs = draw.costs(/*least=*/0);
    const Reference reference(schedule, costs);
    const Timeline timeline = simulate(schedule, costs);
    transfers += timeline.transfers.size();
    for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
      std::size_t spans = 0, copies = 0;
      for (std::size_t k = 0; k < schedule.ranks[r].size(); ++k) {
        if (!is_compute(schedule.ranks[r][k].kind)) {
          const HostCopy& copy = timeline.host_copies.at(r).at(copies++);
          ASSERT_EQ(copy.action, schedule.ranks[r][k]);
          ASSERT_EQ(copy.place, spans) << "seed " << seed;
          ASSERT_EQ(copy.start, reference.starts()[r][k])
              << "seed " << seed << ", " << to_string(copy.action);
          ASSERT_EQ(copy.end, reference.ends()[r][k])
              << "seed " << seed << ", " << to_string(copy.action);
          continue;
        }
        const Span& span = timeline.ranks[r].at(spans++);
        ASSERT_EQ(span.action, schedule.ranks[r][k]);
        ASSERT_EQ(span.start, reference.starts()[r][k])
            << "seed " << seed << ", " << to_string(span.action);
        ASSERT_EQ(span.end, reference.ends()[r][k])
            << "seed " << seed << ", " << to_string(span.action);
        if (!span.action.fused_with_next) continue;
        ++(span.action.kind == ActionKind::kRecompute ? late : pairs);
      }
      ASSERT_EQ(timeline.ranks[r].size(), spans);
      host_copies += copies;
    }
  }
  // The random schedules have enough of each.
  EXPECT_GT(pairs, 1000);
  EXPECT_GT(late, 1000);
  EXPECT_GT(transfers, 5000);
  EXPECT_GT(host_copies, 5000);
}

TEST(RandomScheduleTest, MemoryIsThatOfTheCellsThatAreHeld) {
  for (int seed = 0; seed < kDraws / 4; ++seed) {
    Draw draw(seed);
    const Schedule schedule = draw.schedule();
    // An action of 0 seconds would take and free its memory at the same time.
    const Costs costs = draw.costs(/*least=*/1);
    const Reference reference(schedule, costs);
    const Timeline timeline = simulate(schedule, costs);
    for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
      const auto& points = timeline.memory[r];
      double peak = 0, last = -1;
      for (std::size_t k = 0; k < points.size(); ++k) {
        ASSERT_EQ(points[k].bytes, reference.bytes(r, points[k].time))
            << "seed " << seed << ", rank " << r << ", " << points[k].time;
        ASSERT_GT(points[k].time, last);
        last = points[k].time;
        peak = std::max(peak, points[k].bytes);
      }
      std::vector<double> times;
      for (const Span& span : timeline.ranks[r]) {
        times.insert(times.end(), {span.start, span.end});
      }
      if (!timeline.host_copies.empty()) {
        for (const HostCopy& copy : timeline.host_copies[r]) {
          times.insert(times.end(), {copy.start, copy.end});
        }
      }
      for (const double time : times) {
        const auto next = std::find_if(
            points.begin(), points.end(),
            [&](const MemoryPoint& point) { return point.time > time; });
        ASSERT_EQ(std::prev(next)->bytes, reference.bytes(r, time))
            << "seed " << seed << ", rank " << r << ", " << time;
      }
      EXPECT_EQ(timeline.peak_bytes[r], peak);
    }
  }
}

TEST(RandomScheduleTest, CriticalPathsHaveNoGap) {
  for (int seed = 0; seed < kDraws; ++seed) {
    Draw draw(seed);
    const Schedule schedule = draw.schedule();
    const Timeline timeline = simulate(schedule, draw.costs(/*least=*/0));
    double time = 0;
    for (const CriticalStep& step : critical_path(timeline)) {
      ASSERT_EQ(step.start, time) << "seed " << seed;
      time = step.end;
    }
    EXPECT_EQ(time, timeline.makespan) << "seed " << seed;
  }
}

TEST(RandomScheduleTest, CriticalPathsOfOneRankBeginWithACopyFromAnother) {
  int copies = 0;
  for (int seed = 0; seed < kDraws / 4; ++seed) {
    Draw draw(seed);
    const Schedule schedule = draw.schedule();
    Costs costs = draw.costs(/*least=*/0);
    costs.latency += 0.5;  // every input from another rank has a copy
    const Timeline whole = simulate(schedule, costs);
    for (std::size_t r = 0; r < whole.ranks.size(); ++r) {
      const int rank = static_cast<int>(r);
      Timeline timeline = timeline_of({whole.ranks[r]});
      timeline.first_rank = rank;
      if (!whole.host_copies.empty()) {
        timeline.host_copies = {whole.host_copies[r]};
      }
      for (const Transfer& each : whole.transfers) {
        if (each.from != rank && each.to != rank) continue;
        timeline.transfers.push_back(each);
      }
      const auto path = critical_path(timeline);
      if (path.empty()) continue;
      EXPECT_EQ(path.back().end, timeline.makespan) << "seed " << seed;
      for (std::size_t k = 0; k < path.size(); ++k) {
        const bool comes = path[k].is_transfer();
        const double before = k == 0 ? 0 : path[k - 1].end;
        ASSERT_EQ(path[k].to, rank) << "seed " << seed;
        ASSERT_TRUE(comes ? k == 0 : path[k].start == before)
            << "seed " << seed;
        copies += comes;
      }
    }
  }
  EXPECT_GT(copies, 300);
}

}  // namespace
}  // namespace gpipe
