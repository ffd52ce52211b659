#include "gpipe/simulation/search/automatic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/schedule/named.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/simulation/simulate.h"
#include "gpipe/testing/rounds.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

std::size_t size(int number) { return static_cast<std::size_t>(number); }

std::vector<int> in_line(int ranks) {
  std::vector<int> place(size(ranks));
  std::iota(place.begin(), place.end(), 0);
  return place;
}

std::vector<int> in_a_v(int ranks) {
  std::vector<int> place = in_line(ranks);
  for (int r = ranks; r-- > 0;) place.push_back(r);
  return place;
}

Costs equal_parts(std::size_t stages) {
  Costs costs;
  costs.forward.assign(stages, 1);
  costs.backward_input.assign(stages, 1);
  costs.backward_weight.assign(stages, 1);
  return costs;
}

// Returns the costs with which automatic_schedule() simulates its result.
Costs completed(Costs costs) {
  if (!costs.backward.empty()) return costs;
  for (std::size_t s = 0; s < costs.backward_input.size(); ++s) {
    costs.backward.push_back(costs.backward_input[s] +
                             costs.backward_weight[s]);
  }
  return costs;
}

// A source of random costs and placements.
class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  int number(int least, int most) {
    return least + static_cast<int>(random_() % (most - least + 1));
  }
  bool chance() { return number(0, 1) == 1; }

  std::vector<double> list(std::size_t stages, int least, int most) {
    std::vector<double> list;
    for (std::size_t s = 0; s < stages; ++s) {
      list.push_back(number(least, most));
    }
    return list;
  }

  // Returns costs that are whole numbers, so that sums are exact.
  Costs costs(std::size_t stages) {
    Costs costs;
    costs.forward = list(stages, 1, 9);
    const bool splits = chance();
    if (splits) {
      costs.backward_input = list(stages, 1, 9);
      costs.backward_weight = list(stages, 1, 9);
    }
    if (!splits || chance()) costs.backward = list(stages, 1, 18);
    if (chance()) costs.recompute = list(stages, 1, 9);
    if (chance()) costs.latency = number(0, 3);
    costs.resident_bytes = list(stages, 0, 5);
    costs.activation_bytes = list(stages, 1, 9);
    costs.input_bytes = list(stages, 0, 3);
    if (chance()) {
      for (const double bytes : costs.activation_bytes) {
        costs.weight_activation_bytes.push_back(
            number(0, static_cast<int>(bytes)));
      }
    }
    return costs;
  }

  // Returns a random placement in which each rank has at least one stage.
  std::vector<int> place(int ranks, int stages) {
    std::vector<int> place = in_line(ranks);
    while (static_cast<int>(place.size()) < stages) {
      place.push_back(number(0, ranks - 1));
    }
    for (std::size_t k = place.size(); k > 1; --k) {
      std::swap(place[k - 1], place[random_() % k]);
    }
    return place;
  }

 private:
  std::mt19937 random_;
};

// ---- The best of all schedules

// A search of all schedules, in the order of starts. On each stage, a forward
// or backward may take any micro-batch that has arrived. The first stage takes
// them in ascending order, since they are all equal.
class Everything {
 public:
  Everything(const std::vector<int>& place, int microbatches,
             const Costs& costs, const std::vector<double>& limits)
      : place_(place),
        m_(microbatches),
        costs_(completed(costs)),
        limits_(limits),
        cells_(place.size() * size(microbatches)),
        free_(limits.size()),
        bytes_(limits.size()) {
    splits_ = !costs_.backward_input.empty();
    for (std::size_t s = 0; s < place.size(); ++s) {
      bytes_[size(place[s])] += costs_.resident_bytes[s];
    }
  }

  // Returns the shortest makespan below `known`, or `known` if there is none.
  double makespan(double known) {
    best_ = known;
    go_on(0);
    return best_;
  }

 private:
  enum State { kNothing, kForward, kRecompute, kInput, kDone };
  struct Cell {
    State state = kNothing;
    bool recomputed = false;
    double forward = kInfinite,
           backward = kInfinite;  // when F, and B or I, end
  };

  Cell& cell(std::size_t s, int i) { return cells_[s * size(m_) + size(i)]; }

  // Returns when the output of stage `from`, made at `end`, arrives at `to`.
  double there(std::size_t from, std::size_t to, double end) const {
    return end + (place_[from] == place_[to] ? 0 : costs_.latency);
  }

  void go_on(double last) {
    double bound = 0;
    bool done = true;
    std::vector<double> work = free_;
    for (std::size_t s = 0; s < place_.size(); ++s) {
      for (int i = 0; i < m_; ++i) {
        const Cell& at = cell(s, i);
        double& w = work[size(place_[s])];
        done = done && at.state == kDone;
        if (at.state == kNothing) w += costs_.forward[s];
        if (at.state < kInput) {
          w += splits_
                   ? std::min(costs_.backward[s], costs_.backward_input[s] +
                                                      costs_.backward_weight[s])
                   : costs_.backward[s];
        }
        if (at.state == kInput) w += costs_.backward_weight[s];
      }
    }
    for (const double w : work) bound = std::max(bound, w);
    if (bound >= best_) return;
    if (done) {
      best_ = bound;
      return;
    }
    for (std::size_t s = 0; s < place_.size(); ++s) {
      for (int i = 0; i < m_; ++i) try_all(s, i, last);
    }
  }

  void try_all(std::size_t s, int i, double last) {
    const Cell& at = cell(s, i);
    const double a = costs_.activation_bytes[s], input = costs_.input_bytes[s];
    const double w = costs_.weight_activation_bytes.empty()
                         ? a
                         : costs_.weight_activation_bytes[s];
    const double kept = at.recomputed ? input : 0;
    if (at.state == kNothing) {
      if (s == 0 && i > 0 && cell(0, i - 1).state == kNothing) return;
      const double ready = s == 0 ? 0 : there(s - 1, s, cell(s - 1, i).forward);
      step(s, i, kForward, false, ready, costs_.forward[s], a, 0, last);
      if (costs_.recompute.empty()) return;
      step(s, i, kForward, true, ready, costs_.forward[s], input, 0, last);
    } else if (at.state == kForward && at.recomputed) {
      step(s, i, kRecompute, true, 0, costs_.recompute[s], a, 0, last);
    } else if (at.state == kForward || at.state == kRecompute) {
      const double ready =
          s + 1 == place_.size() ? 0 : there(s + 1, s, cell(s + 1, i).backward);
      step(s, i, kDone, at.recomputed, ready, costs_.backward[s], 0, a + kept,
           last);
      if (!splits_) return;
      step(s, i, kInput, at.recomputed, ready, costs_.backward_input[s], 0,
           a - w, last);
    } else if (at.state == kInput) {
      step(s, i, kDone, at.recomputed, 0, costs_.backward_weight[s], 0,
           w + kept, last);
    }
  }

  void step(std::size_t s, int i, State state, bool recomputed, double ready,
            double seconds, double takes, double frees, double last) {
    const auto r = size(place_[s]);
    const double start = std::max(free_[r], ready);
    if (start == kInfinite || start < last) return;
    if (bytes_[r] + takes > limits_[r]) return;
    const Cell before = cell(s, i);
    const double free_before = free_[r], bytes_before = bytes_[r];
    Cell& at = cell(s, i);
    if (state == kForward) at.forward = start + seconds;
    if (before.backward == kInfinite && state >= kInput) {
      at.backward = start + seconds;
    }
    at.state = state;
    at.recomputed = recomputed;
    free_[r] = start + seconds;
    bytes_[r] += takes - frees;
    go_on(start);
    cell(s, i) = before;
    free_[r] = free_before;
    bytes_[r] = bytes_before;
  }

  const std::vector<int> place_;
  const int m_;
  const Costs costs_;
  const std::vector<double> limits_;
  std::vector<Cell> cells_;
  std::vector<double> free_, bytes_;
  bool splits_ = false;
  double best_ = kInfinite;
};

// ---- Checks of every result

void expect_sound(const AutomaticSchedule& result,
                  const std::vector<int>& place, int microbatches,
                  const Costs& costs, const std::vector<double>& limits) {
  validate(result.schedule);
  EXPECT_EQ(rank_of_stage(result.schedule), place);
  EXPECT_EQ(num_microbatches(result.schedule), microbatches);
  const Timeline again = simulate(result.schedule, completed(costs));
  EXPECT_EQ(again.makespan, result.timeline.makespan);
  EXPECT_GE(result.timeline.makespan, result.lower_bound);
  for (std::size_t r = 0; r < limits.size(); ++r) {
    EXPECT_LE(again.peak_bytes[r], limits[r]) << "rank " << r;
  }
  // Two lower bounds: the work of each rank with the shorter form of each
  // backward, and the time of one micro-batch through all stages and back.
  double way = 0;
  std::vector<double> work(result.schedule.ranks.size());
  for (std::size_t s = 0; s < place.size(); ++s) {
    double b = completed(costs).backward[s], i = b;
    if (!costs.backward_input.empty()) {
      i = std::min(i, costs.backward_input[s]);
      b = std::min(b, costs.backward_input[s] + costs.backward_weight[s]);
    }
    way += costs.forward[s] + i;
    work[size(place[s])] += microbatches * (costs.forward[s] + b);
  }
  EXPECT_GE(result.timeline.makespan, way);
  EXPECT_THAT(work, Each(Le(result.timeline.makespan)));
}

// Returns the makespan of the shortest named schedule with that placement that
// fits; infinite if none fits.
double best_named(const std::vector<int>& place, int microbatches,
                  const Costs& costs, const std::vector<double>& limits) {
  const int ranks = static_cast<int>(limits.size());
  const int v = static_cast<int>(place.size()) / ranks;
  double best = kInfinite;
  for (const std::string& name : schedule_names()) {
    if (name == "forward-only" || v * ranks != static_cast<int>(place.size()) ||
        fixed_stages_per_rank(name).value_or(v) != v) {
      continue;
    }
    const Schedule plain = named_schedule(name, ranks, microbatches, v);
    if (rank_of_stage(plain) != place) continue;
    std::vector<Schedule> all = {plain};
    if (!costs.recompute.empty()) {
      for (const auto placement :
           {RecomputePlacement::kBeforeBackward,
            RecomputePlacement::kWithBackward, RecomputePlacement::kAhead}) {
        all.push_back(with_recompute(
            plain, [](int) { return true; }, placement));
      }
    }
    for (const Schedule& schedule : all) {
      bool has_costs = true;
      for (const auto& actions : schedule.ranks) {
        for (const Action& action : actions) {
          has_costs =
              has_costs && (action.kind != ActionKind::kBackwardWeight ||
                            !costs.backward_weight.empty());
        }
      }
      if (!has_costs) continue;
      const Timeline timeline = simulate(schedule, completed(costs));
      bool fits = true;
      for (std::size_t r = 0; r < limits.size(); ++r) {
        fits = fits && timeline.peak_bytes[r] <= limits[r];
      }
      if (fits) best = std::min(best, timeline.makespan);
    }
  }
  return best;
}

// ---- Tests

// Cases with and without limits. If automatic_schedule() throws, no schedule
// fits.
TEST(AutomaticTest, FindsTheShortestOfAllSmallSchedules) {
  Draw draw(1);
  int feasible = 0;
  for (int k = 0; k < testing::rounds(50, 200); ++k) {
    const std::vector<int> place =
        k % 4 ? in_line(2) : draw.place(2, draw.number(2, 3));
    const int m = place.size() > 2 || k % 8 ? 2 : 3;
    const Costs costs = draw.costs(place.size());
    AutomaticOptions options;
    options.budget = 5000;
    options.memory_bytes = {kInfinite, kInfinite};
    if (draw.chance()) options.memory_bytes = draw.list(2, 10, 45);
    Everything everything(place, m, costs, options.memory_bytes);
    AutomaticSchedule result;
    try {
      result = automatic_schedule(place, m, costs, options);
    } catch (const std::invalid_argument&) {
      EXPECT_EQ(everything.makespan(kInfinite), kInfinite) << k;
      continue;
    }
    ++feasible;
    expect_sound(result, place, m, costs, options.memory_bytes);
    // Times are whole numbers, so this finds a schedule of the same length.
    EXPECT_EQ(everything.makespan(result.timeline.makespan + 1),
              result.timeline.makespan)
        << k;
  }
  EXPECT_GE(feasible, testing::rounds(37, 150));
}

// The makespan is 3 m v + p - 1 units: the last rank waits only for its first
// micro-batch. No named schedule has its ranks in reverse order.
TEST(AutomaticTest, EqualStagesAreIdleOnlyUntilTheyBegin) {
  for (const int p : {1, 2, 4, 6}) {
    const int m = 2 * p;
    std::vector<int> backwards = in_line(p);
    std::reverse(backwards.begin(), backwards.end());
    for (const auto& place : {in_line(p), in_a_v(p), backwards}) {
      const int v = static_cast<int>(place.size()) / p;
      const auto result =
          automatic_schedule(place, m, equal_parts(place.size()));
      EXPECT_EQ(result.timeline.makespan, 3 * m * v + p - 1) << result.origin;
      EXPECT_EQ(result.lower_bound, result.timeline.makespan);
      EXPECT_THAT(result.timeline.idle, Each(p - 1));
    }
  }
}

// With i = 2, ZB-H1 is idle for longer, and ZB-H2 is the shortest possible.
TEST(AutomaticTest, SaysWhichNamedScheduleItIs) {
  Costs costs = equal_parts(4);
  costs.backward_input.assign(4, 2);
  const auto result = automatic_schedule(in_line(4), 8, costs);
  EXPECT_EQ(result.origin, "zb-h2");
  EXPECT_TRUE(result.schedule.ranks == named_schedule("zb-h2", 4, 8, 1).ranks);
  EXPECT_EQ(result.timeline.makespan, 8 * 4 + 3);
  EXPECT_EQ(automatic_schedule(in_a_v(4), 8, equal_parts(8)).origin, "zbv");
}

TEST(AutomaticTest, IsNeverLongerThanANamedScheduleThatFits) {
  Draw draw(2);
  int compared = 0, shorter = 0;
  for (int k = 0; k < testing::rounds(300, 1500); ++k) {
    const int p = draw.number(1, 4), m = draw.number(1, 7);
    std::vector<int> place = k % 2 ? in_line(p) : in_a_v(p);
    if (k % 6 == 0) {
      place = in_line(p);
      for (int r = 0; r < p; ++r) place.push_back(r);
    }
    const Costs costs = draw.costs(place.size());
    AutomaticOptions options;
    options.budget = draw.number(0, 300);
    options.memory_bytes = std::vector<double>(size(p), kInfinite);
    if (draw.chance()) {
      options.memory_bytes = draw.list(size(p), 20, 60);
    }
    const double named = best_named(place, m, costs, options.memory_bytes);
    AutomaticSchedule result;
    try {
      result = automatic_schedule(place, m, costs, options);
    } catch (const std::invalid_argument&) {
      EXPECT_EQ(named, kInfinite) << k;
      continue;
    }
    expect_sound(result, place, m, costs, options.memory_bytes);
    EXPECT_LE(result.timeline.makespan, named) << k;
    if (named < kInfinite) ++compared;
    if (result.timeline.makespan < named) ++shorter;
  }
  EXPECT_GE(compared, testing::rounds(150, 750));
  EXPECT_GE(shorter, testing::rounds(75, 375));
}

// Returns the least memory that a rank needs, in bytes. With one stage it holds
// the activations of one micro-batch. With two stages, the first one may keep
// only its input until its recompute.
double least_bytes(const std::vector<int>& place, int rank,
                   const Costs& costs) {
  std::vector<std::size_t> own;
  double resident = 0;
  for (std::size_t s = 0; s < place.size(); ++s) {
    if (place[s] != rank) continue;
    own.push_back(s);
    resident += costs.resident_bytes[s];
  }
  const auto& a = costs.activation_bytes;
  if (own.size() == 1) return resident + a[own[0]];
  double least = a[own[0]] + a[own[1]];
  if (!costs.recompute.empty()) {
    least = std::min(
        least, costs.input_bytes[own[0]] + std::max(a[own[0]], a[own[1]]));
  }
  return resident + least;
}

TEST(AutomaticTest, KeepsToAnyLimitDownToTheLeast) {
  Draw draw(3);
  for (int k = 0; k < testing::rounds(600, 3000); ++k) {
    const int p = draw.number(1, 4), m = draw.number(1, 6);
    const auto place = draw.chance() ? in_line(p) : in_a_v(p);
    const Costs costs = draw.costs(place.size());
    AutomaticOptions options;
    options.budget = 100;
    for (int r = 0; r < p; ++r) {
      options.memory_bytes.push_back(least_bytes(place, r, costs) +
                                     draw.number(0, k % 4 * 10));
    }
    const auto result = automatic_schedule(place, m, costs, options);
    expect_sound(result, place, m, costs, options.memory_bytes);
  }
}

TEST(AutomaticTest, OneByteLessThanTheLeastIsRefused) {
  Draw draw(4);
  for (int k = 0; k < testing::rounds(60, 300); ++k) {
    const int p = draw.number(1, 4);
    const auto place = draw.chance() ? in_line(p) : in_a_v(p);
    const Costs costs = draw.costs(place.size());
    AutomaticOptions options;
    options.memory_bytes.assign(size(p), kInfinite);
    const int r = draw.number(0, p - 1);
    const double least = least_bytes(place, r, costs);
    options.memory_bytes[size(r)] = least - 1;
    const auto text = [](double number) {
      return std::to_string(static_cast<int>(number));
    };
    EXPECT_THAT(
        [&] { automatic_schedule(place, 3, costs, options); },
        ThrowsMessage<std::invalid_argument>(StartsWith(
            "rank " + std::to_string(r) + " may hold " + text(least - 1) +
            " bytes, and needs " + text(least) + " at least")));
  }
}

TEST(AutomaticTest, RecomputesWhereALimitAsksForIt) {
  Costs costs = equal_parts(4);
  costs.recompute.assign(4, 1);
  costs.activation_bytes.assign(4, 10);
  costs.input_bytes.assign(4, 1);
  const auto recomputes = [](const AutomaticSchedule& result, std::size_t r) {
    const auto& actions = result.schedule.ranks[r];
    return std::count_if(actions.begin(), actions.end(), [](const Action& a) {
      return a.kind == ActionKind::kRecompute;
    });
  };
  AutomaticOptions options;
  const auto unlimited = automatic_schedule(in_line(4), 8, costs);
  for (const std::size_t r : {0, 1, 2, 3}) {
    EXPECT_EQ(recomputes(unlimited, r), 0);
  }
  options.memory_bytes = {15, kInfinite, kInfinite, kInfinite};
  const auto limited = automatic_schedule(in_line(4), 8, costs, options);
  EXPECT_GT(recomputes(limited, 0), 0);
  EXPECT_LE(limited.timeline.peak_bytes[0], 15);
  options.recompute = false;
  const auto plain = automatic_schedule(in_line(4), 8, costs, options);
  EXPECT_EQ(recomputes(plain, 0), 0);
  EXPECT_EQ(plain.timeline.peak_in_flight[0], 1);
  EXPECT_LT(limited.timeline.makespan, plain.timeline.makespan);
}

TEST(AutomaticTest, SplitsBackwardsOnlyIfItMayAndCan) {
  const auto has = [](const AutomaticSchedule& result, ActionKind kind) {
    for (const auto& actions : result.schedule.ranks) {
      for (const Action& action : actions) {
        if (action.kind == kind) return true;
      }
    }
    return false;
  };
  Costs costs = equal_parts(3);
  EXPECT_TRUE(has(automatic_schedule(in_line(3), 6, costs),
                  ActionKind::kBackwardWeight));
  AutomaticOptions options;
  options.split_backward = false;
  const auto whole = automatic_schedule(in_line(3), 6, costs, options);
  EXPECT_FALSE(has(whole, ActionKind::kBackwardInput));
  // The shortest possible with whole backwards is (m + p - 1)(f + i + w).
  EXPECT_EQ(whole.timeline.makespan, 8 * 3);
  EXPECT_EQ(whole.lower_bound, 8 * 3);

  costs.backward_input.clear();
  costs.backward_weight.clear();
  costs.backward.assign(3, 2);
  EXPECT_FALSE(has(automatic_schedule(in_line(3), 6, costs),
                   ActionKind::kBackwardInput));
}

// On a single rank, all actions except the first forward and the last backward
// are in pairs.
TEST(AutomaticTest, OverlapsForwardsAndBackwards) {
  Costs costs;
  costs.forward = {1};
  costs.backward = {1};
  costs.overlap = 1;
  EXPECT_EQ(automatic_schedule({0}, 8, costs).timeline.makespan, 9);
  costs.overlap = 0;
  EXPECT_EQ(automatic_schedule({0}, 8, costs).timeline.makespan, 16);
}

TEST(AutomaticTest, GivesTheSameForTheSameArguments) {
  Draw draw(5);
  const Costs costs = draw.costs(4);
  AutomaticOptions options;
  options.memory_bytes = {60};
  options.seed = 7;
  const auto a = automatic_schedule(in_line(4), 8, costs, options);
  const auto b = automatic_schedule(in_line(4), 8, costs, options);
  EXPECT_TRUE(a.schedule.ranks == b.schedule.ranks);
  EXPECT_EQ(a.origin, b.origin);
}

// Without a memory limit the search makes no O and no L. What it finds can be
// offloaded.
TEST(AutomaticTest, FindsSchedulesThatCanBeOffloaded) {
  Draw draw(3);
  Costs costs = draw.costs(4);
  AutomaticOptions options;
  const auto found = automatic_schedule(in_line(4), 8, costs, options);
  costs.host_bandwidth = 1;
  const auto same = automatic_schedule(in_line(4), 8, costs, options);
  EXPECT_TRUE(same.schedule.ranks == found.schedule.ranks);
  costs = completed(costs);
  for (const int ahead : {0, 1, 2}) {
    const Schedule offloaded = with_offload(
        found.schedule, [](int, int) { return true; }, ahead);
    validate(offloaded);
    costs.host_bandwidth = 0;
    EXPECT_EQ(simulate(offloaded, costs).makespan, found.timeline.makespan);
    costs.host_bandwidth = 1;
    EXPECT_GE(simulate(offloaded, costs).makespan, found.timeline.makespan);
  }
}

TEST(AutomaticTest, RefusesWhatCannotBe) {
  const Costs costs = equal_parts(2);
  const auto refuses = [](const std::vector<int>& place, int m,
                          const Costs& costs, const AutomaticOptions& options,
                          const std::string& text) {
    EXPECT_THAT([&] { automatic_schedule(place, m, costs, options); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(text)));
  };
  refuses({}, 1, costs, {}, "there are 0 stages and 1 micro-batches");
  refuses({0, 1}, 0, costs, {}, "there are 2 stages and 0 micro-batches");
  refuses({0, 2}, 1, costs, {}, "stage 1 is on rank 2");
  refuses({1, 1}, 1, costs, {}, "rank 0 has no stage");
  refuses({0, 1, 1}, 1, costs, {}, "there is no backward cost of stage 0");
  AutomaticOptions options;
  options.memory_bytes = {1, 1, 1};
  refuses({0, 1}, 1, costs, options, "there are 3 memory limits for 2 ranks");
  options.memory_bytes = {1, -1};
  refuses({0, 1}, 1, costs, options, "memory limit 1 is -1");
  options = {};
  options.budget = -1;
  refuses({0, 1}, 1, costs, options, "the budget is -1");
  Costs bad = costs;
  bad.forward = {1};
  refuses({0, 1}, 1, bad, {}, "there is no forward cost of stage 1");
}

}  // namespace
}  // namespace gpipe
