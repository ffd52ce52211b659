// Tests of all schedules: the orders, times and memory that they promise, and
// their names.
#include <absl/strings/str_join.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/named.h"
#include "gpipe/schedule/one_forward_one_backward.h"
#include "gpipe/schedule/order.h"
#include "gpipe/schedule/text.h"
#include "gpipe/schedule/v_shape.h"
#include "gpipe/schedule/validate.h"

namespace gpipe {

// ---- Tests of the orders of all schedules: some in full, the others by their
// rules.
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::ThrowsMessage;

struct Sizes {
  int ranks, microbatches, stages_per_rank;
};

std::string name_of(const Sizes& sizes) {
  return std::to_string(sizes.ranks) + " ranks, " +
         std::to_string(sizes.microbatches) + " micro-batches, " +
         std::to_string(sizes.stages_per_rank) + " stages per rank";
}

std::vector<Sizes> grid() {
  std::vector<Sizes> result;
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 16; ++m) {
      for (int v = 1; v <= 3; ++v) result.push_back({p, m, v});
    }
  }
  return result;
}

// The number of times that each action (rank, stage, kind, micro-batch) occurs.
using Counts = std::map<std::tuple<int, int, ActionKind, int>, int>;

Counts counts(const Schedule& schedule) {
  Counts result;
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (const Action& a : schedule.ranks[r]) {
      ++result[{static_cast<int>(r), a.stage, a.kind, a.microbatch}];
    }
  }
  return result;
}

// Returns the counts with a B for each I and W. Expects that each I has a W on
// its rank, and each W an I.
Counts wholes(const Counts& all) {
  Counts result;
  for (const auto& [key, count] : all) {
    const auto [rank, stage, kind, i] = key;
    if (kind == ActionKind::kBackwardInput) {
      EXPECT_EQ((all.count({rank, stage, ActionKind::kBackwardWeight, i})), 1u);
      result[{rank, stage, ActionKind::kBackward, i}] += count;
    } else if (kind == ActionKind::kBackwardWeight) {
      EXPECT_EQ((all.count({rank, stage, ActionKind::kBackwardInput, i})), 1u);
    } else {
      result[key] += count;
    }
  }
  return result;
}

TEST(Generators, DoAllOnceOnTheirRanksInAnOrderThatCanBeDone) {
  for (const std::string& name : schedule_names()) {
    const bool is_v = fixed_stages_per_rank(name) == 2;
    for (const auto& [p, m, v] : grid()) {
      if (fixed_stages_per_rank(name).value_or(v) != v) continue;
      SCOPED_TRACE(name + ", " + name_of({p, m, v}));
      const Schedule schedule = named_schedule(name, p, m, v);
      Counts expected;
      for (int stage = 0; stage < p * v; ++stage) {
        const int rank = is_v && stage >= p ? 2 * p - 1 - stage : stage % p;
        for (int i = 0; i < m; ++i) {
          expected[{rank, stage, ActionKind::kForward, i}] = 1;
          if (name == "forward-only") continue;
          expected[{rank, stage, ActionKind::kBackward, i}] = 1;
        }
      }
      const Counts all = counts(schedule);
      for (const auto& [key, count] : all) ASSERT_EQ(count, 1);
      ASSERT_EQ(wholes(all), expected);
      ASSERT_NO_THROW(clock_order(schedule));
    }
  }
}

TEST(Generators, RefuseNothingToDo) {
  for (const std::string& name : schedule_names()) {
    const int v = fixed_stages_per_rank(name).value_or(2);
    EXPECT_THAT([&] { named_schedule(name, 0, 3, v); },
                ThrowsMessage<std::invalid_argument>(
                    AllOf(HasSubstr("at least 1"), HasSubstr("ranks: 0"))));
    EXPECT_THAT(
        [&] { named_schedule(name, 2, -1, v); },
        ThrowsMessage<std::invalid_argument>(HasSubstr("micro-batches: -1")));
  }
  EXPECT_THROW(fill_drain(0, 1), std::invalid_argument);
  EXPECT_THROW(fill_drain(1, 0), std::invalid_argument);
  EXPECT_THROW(forward_only(1, 0), std::invalid_argument);
  EXPECT_THROW(one_forward_one_backward(0, 1), std::invalid_argument);
  EXPECT_THROW(eager_one_forward_one_backward(1, 0), std::invalid_argument);
  EXPECT_THROW(interleaved(1, 1, 0), std::invalid_argument);
  EXPECT_THROW(looped_bfs(1, 1, 0), std::invalid_argument);
  EXPECT_THROW(zero_bubble_h1(1, 0), std::invalid_argument);
  EXPECT_THROW(zero_bubble_h2(0, 1), std::invalid_argument);
  EXPECT_THROW(zero_bubble_interleaved(1, 1, 0), std::invalid_argument);
  EXPECT_THROW(zero_bubble_v(0, 1), std::invalid_argument);
  EXPECT_THROW(dual_pipe_v(1, 0), std::invalid_argument);
  EXPECT_THROW(v_half(0, 1), std::invalid_argument);
  EXPECT_THROW(v_min(1, 0), std::invalid_argument);
}

TEST(Generators, RefuseMoreCellsThanTheyCanNumber) {
  for (const std::string& name : schedule_names()) {
    SCOPED_TRACE(name);
    const int v = fixed_stages_per_rank(name).value_or(2);
    const std::string stages = std::to_string(v);
    EXPECT_THAT([&] { named_schedule(name, 1 << 14, (1 << 14) + 1, v); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(
                    "at most 2^28 cells, ranks times stages per rank times "
                    "micro-batches (ranks: 16384, stages per rank: " +
                    stages + ", micro-batches: 16385)")));
    EXPECT_THROW(named_schedule(name, std::numeric_limits<int>::max(), 1, v),
                 std::invalid_argument);
  }
  // The product is 0 as an int.
  EXPECT_THAT([] { looped_bfs(1 << 16, 1, 1 << 16); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("(ranks: 65536, stages per rank: 65536,")));
  EXPECT_THROW(interleaved(1 << 16, 1, 1 << 16), std::invalid_argument);
  // Their rows are made for 2p - 1 and 2p micro-batches.
  EXPECT_THAT([] { zero_bubble_v(1 << 14, 1); },
              ThrowsMessage<std::invalid_argument>(HasSubstr(
                  "(ranks: 16384, stages per rank: 1, micro-batches: 32767)")));
  EXPECT_THAT([] { dual_pipe_v(1 << 14, 1); },
              ThrowsMessage<std::invalid_argument>(HasSubstr(
                  "(ranks: 16384, stages per rank: 1, micro-batches: 32768)")));
}

TEST(ForwardOnly, RunsMicrobatchesInOrder) {
  EXPECT_EQ(to_csv(forward_only(2, 3)),
            "0F0,0F1,0F2\n"
            "1F0,1F1,1F2\n");
}

// The rule of the schedules of the 1F1B family. A rank runs a forward if it
// holds fewer than `holds` micro-batches, otherwise a backward. W follows `lag`
// Is behind its own I.
struct Rule {
  Sizes sizes;
  int group;
  std::function<int(int rank)> holds;
  std::function<int(int rank)> lag;  // empty: backwards are whole
};

std::vector<Action> row(const Rule& rule, int rank) {
  const auto [p, m, v] = rule.sizes;
  std::vector<Action> forwards, backwards, out;
  for (int chunk = 0; chunk < v; ++chunk) {
    for (int i = 0; i < m; ++i) {
      const int stage = chunk * p + rank;
      forwards.push_back({stage, ActionKind::kForward, i});
      backwards.push_back(
          {stage, rule.lag ? ActionKind::kBackwardInput : ActionKind::kBackward,
           i});
    }
  }
  const auto sort = [&](std::vector<Action>& actions, int sign) {
    std::ranges::sort(actions, [&](const Action& a, const Action& b) {
      return std::tuple(a.microbatch / rule.group, sign * a.stage,
                        a.microbatch) < std::tuple(b.microbatch / rule.group,
                                                   sign * b.stage,
                                                   b.microbatch);
    });
  };
  sort(forwards, 1);
  sort(backwards, -1);
  const auto all = forwards.size();
  const int lag = rule.lag ? rule.lag(rank) : 0;
  const auto weight = [&](int k) {
    out.push_back({backwards[k].stage, ActionKind::kBackwardWeight,
                   backwards[k].microbatch});
  };
  std::size_t f = 0, b = 0;
  while (b < all) {
    if (f < all && static_cast<int>(f - b) < rule.holds(rank)) {
      out.push_back(forwards[f++]);
      continue;
    }
    out.push_back(backwards[b++]);
    const int oldest = static_cast<int>(b) - 1 - lag;
    if (rule.lag && oldest >= 0) weight(oldest);
  }
  if (rule.lag) {
    const int total = static_cast<int>(all);
    for (int k = std::max(0, total - lag); k < total; ++k) weight(k);
  }
  return out;
}

std::string csv_of(const Rule& rule) {
  Schedule schedule;
  for (int r = 0; r < rule.sizes.ranks; ++r) {
    schedule.ranks.push_back(row(rule, r));
  }
  return to_csv(schedule);
}

TEST(OneForwardOneBackward, GoesForwardWheneverItMayHoldAnother) {
  EXPECT_EQ(to_csv(one_forward_one_backward(3, 4)),
            "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
            "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
  for (const auto& [p, m, v] : grid()) {
    if (v > 1) continue;
    const auto holds = [p = p](int r) { return p - r; };
    const auto holds_eager = [p = p](int r) { return 2 * (p - 1 - r) + 1; };
    EXPECT_EQ(to_csv(one_forward_one_backward(p, m)),
              csv_of(Rule{{p, m, 1}, m, holds, {}}));
    EXPECT_EQ(to_csv(eager_one_forward_one_backward(p, m)),
              csv_of(Rule{{p, m, 1}, m, holds_eager, {}}));
  }
}

TEST(Interleaved, TakesGroupsChunkByChunk) {
  EXPECT_EQ(
      to_csv(interleaved(2, 4, 2)),
      "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
      "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n");
  for (const auto& [p, m, v] : grid()) {
    for (int g = 1; g <= m; ++g) {
      // The condition of Megatron-LM, which does not accept m < p.
      if (g < std::min(p, m) || (m % g > 0 && m % g < p)) {
        EXPECT_THROW(interleaved(p, m, v, g), std::invalid_argument);
        continue;
      }
      SCOPED_TRACE(name_of({p, m, v}) + ", group " + std::to_string(g));
      const auto holds = [p = p, v = v, g](int r) {
        return 2 * (p - 1 - r) + (v - 1) * g + 1;
      };
      const Schedule schedule = interleaved(p, m, v, g);
      ASSERT_EQ(to_csv(schedule), csv_of(Rule{{p, m, v}, g, holds, {}}));
      ASSERT_NO_THROW(clock_order(schedule));
      if (g == default_group(p, m)) {
        ASSERT_EQ(to_csv(interleaved(p, m, v)), to_csv(schedule));
      }
    }
  }
}

TEST(Interleaved, ChoosesTheSmallestGroupThatDoesNotWait) {
  EXPECT_EQ(default_group(4, 8), 4);
  EXPECT_EQ(default_group(4, 7), 7);   // with 4 + 3, 5 + 2, 6 + 1, ranks wait
  EXPECT_EQ(default_group(4, 9), 5);   // 5 + 4
  EXPECT_EQ(default_group(4, 10), 5);  // 5 + 5
  EXPECT_EQ(default_group(4, 11), 6);  // 6 + 5
  EXPECT_EQ(default_group(4, 22), 6);  // 6 + 6 + 6 + 4
  EXPECT_EQ(default_group(4, 3), 3);   // all
  EXPECT_EQ(default_group(1, 5), 1);
  EXPECT_THROW(default_group(0, 1), std::invalid_argument);
}

TEST(Interleaved, RefusesGroupsThatAreNone) {
  const auto refuses = [](const std::string& group) {
    return ThrowsMessage<std::invalid_argument>(
        AllOf(HasSubstr("groups of " + group), HasSubstr("5 is possible"),
              HasSubstr("ranks: 4, micro-batches: 9")));
  };
  EXPECT_THAT([] { interleaved(4, 9, 2, 3); }, refuses("3"));
  EXPECT_THAT([] { interleaved(4, 9, 2, 4); }, refuses("4"));  // 4 + 4 + 1
  EXPECT_THAT([] { interleaved(4, 9, 2, 10); }, refuses("10"));
  EXPECT_THAT([] { interleaved(4, 9, 2, -1); }, refuses("-1"));
  EXPECT_THAT([] { interleaved(3, 7, 2, 100); },
              ThrowsMessage<std::invalid_argument>(
                  "micro-batches cannot be interleaved in groups of 100: a "
                  "group must have all of them, or fewer but at least as many "
                  "as there are ranks, also the last group; 4 is possible, or "
                  "0 for the default (ranks: 3, micro-batches: 7)"));
}

TEST(LoopedBfs, GoesChunkByChunk) {
  EXPECT_EQ(to_csv(looped_bfs(2, 2, 2)),
            "0F0,0F1,2F0,2F1,2B1,2B0,0B1,0B0\n"
            "1F0,1F1,3F0,3F1,3B1,3B0,1B1,1B0\n");
  // Forwards are in ascending order of stages. Backwards mirror the forwards.
  for (const auto& [p, m, v] : grid()) {
    const Schedule schedule = looped_bfs(p, m, v);
    for (const auto& actions : schedule.ranks) {
      const auto n = actions.size() / 2;
      ASSERT_EQ(n, static_cast<std::size_t>(m) * v);
      for (std::size_t k = 0; k < n; ++k) {
        Action mirrored = actions[k];
        mirrored.kind = ActionKind::kBackward;
        EXPECT_EQ(actions[k].kind, ActionKind::kForward);
        EXPECT_EQ(actions[k].microbatch, static_cast<int>(k) % m);
        EXPECT_EQ(actions[k].stage % p, actions[0].stage);
        EXPECT_EQ(actions[k].stage / p, static_cast<int>(k) / m);
        EXPECT_EQ(actions[2 * n - 1 - k], mirrored);
      }
    }
  }
}

TEST(ZeroBubble, KeepsWeightsForLater) {
  EXPECT_EQ(to_csv(zero_bubble_h1(3, 4)),
            "0F0,0F1,0F2,0I0,0W0,0F3,0I1,0W1,0I2,0W2,0I3,0W3\n"
            "1F0,1F1,1I0,1F2,1I1,1W0,1F3,1I2,1W1,1I3,1W2,1W3\n"
            "2F0,2I0,2F1,2I1,2F2,2I2,2W0,2F3,2I3,2W1,2W2,2W3\n");
  EXPECT_EQ(to_csv(zero_bubble_h2(2, 3)),
            "0F0,0F1,0F2,0I0,0W0,0I1,0W1,0I2,0W2\n"
            "1F0,1I0,1F1,1I1,1F2,1I2,1W0,1W1,1W2\n");
  for (const auto& [p, m, v] : grid()) {
    SCOPED_TRACE(name_of({p, m, v}));
    const int g = default_group(p, m);
    const auto lag = [](int r) { return r; };
    const auto holds = [p = p, v = v, g](int r) { return p - r + (v - 1) * g; };
    ASSERT_EQ(to_csv(zero_bubble_interleaved(p, m, v)),
              csv_of(Rule{{p, m, v}, g, holds, lag}));
    if (v > 1) continue;
    ASSERT_EQ(to_csv(zero_bubble_h1(p, m)),
              csv_of(Rule{{p, m, 1}, m, holds, lag}));
    const auto holds_2 = [p = p](int r) { return 2 * (p - 1 - r) + 1; };
    const auto lag_2 = [](int r) { return 2 * r; };
    ASSERT_EQ(to_csv(zero_bubble_h2(p, m)),
              csv_of(Rule{{p, m, 1}, m, holds_2, lag_2}));
  }
}

TEST(ZeroBubbleV, FollowsItsPhases) {
  EXPECT_EQ(to_csv(zero_bubble_v(2, 4)),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0F3,0I0,0W0,3F2,3I2,3W2,0I1,"
            "0W1,3F3,3I3,3W3,0I2,0W2,0I3,0W3\n"
            "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1F3,1I1,1W1,2F3,"
            "2I2,2W2,1I2,2I3,1I3,1W2,2W3,1W3\n");
}

TEST(ZeroBubbleV, LeavesOutMicrobatchesThatAreNotThere) {
  EXPECT_EQ(to_csv(zero_bubble_v(2, 1)),
            "0F0,3F0,3I0,3W0,0I0,0W0\n"
            "1F0,2F0,2I0,2W0,1I0,1W0\n");
}

TEST(DualPipeV, FollowsItsPhases) {
  EXPECT_EQ(
      to_csv(dual_pipe_v(2, 4)),
      "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,"
      "(3F2;0B0)OVERLAP_F_B,3B2,(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,0I3,0W3\n"
      "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,"
      "(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,2W3,1W3\n");
}

TEST(DualPipeV, LeavesOutMicrobatchesThatAreNotThere) {
  // One action is left of each of the blocks 0F3+3B1, 3F2+0B0 and 3F3+0B1.
  EXPECT_EQ(to_csv(dual_pipe_v(2, 2)),
            "0F0,0F1,3F0,3I0,3W0,3F1,3B1,0B0,0B1\n"
            "1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n");
}

TEST(DualPipeV, PutsForwardsOfAChunkWithBackwardsOfTheOther) {
  for (const auto& [p, m, v] : grid()) {
    if (v > 1 || m < 2 * p) continue;
    SCOPED_TRACE(name_of({p, m, 2}));
    const Schedule schedule = dual_pipe_v(p, m);
    for (int r = 0; r < p; ++r) {
      const auto& actions = schedule.ranks[r];
      int blocks = 0, whole = 0;
      for (std::size_t k = 0; k < actions.size(); ++k) {
        if (actions[k].kind == ActionKind::kBackward) ++whole;
        if (!actions[k].fused_with_next) continue;
        ++blocks;
        ASSERT_LT(k + 1, actions.size());
        EXPECT_EQ(actions[k].kind, ActionKind::kForward);
        EXPECT_EQ(actions[k + 1].kind, ActionKind::kBackward);
        EXPECT_FALSE(actions[k + 1].fused_with_next);
        EXPECT_EQ(actions[k].stage + actions[k + 1].stage, 2 * p - 1);
      }
      // Phases 4 and 5 of DualPipeV. The last rank's first pair is no block.
      const int last = r == p - 1 ? 1 : 0;
      EXPECT_EQ(blocks, 2 * (m - 2 * p + r + 1) + (p - 1 - r) - last);
      // Backwards in two parts: p - 1 - r at each end, and half of phase 6.
      EXPECT_EQ(whole, 2 * m - 2 * (p - 1 - r) - (r + 1));
    }
  }
}

// Returns the largest number of chunks that a rank holds at a time. A rank
// holds a chunk from its F to its W.
int most_held(const Schedule& schedule) {
  int most = 0;
  for (const auto& actions : schedule.ranks) {
    int held = 0;
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kForward) most = std::max(most, ++held);
      if (action.kind == ActionKind::kBackwardWeight) --held;
    }
  }
  return most;
}

TEST(ControllableMemory, HoldsNoMoreThanPromised) {
  for (int p = 1; p <= 20; ++p) {
    for (const int m : {1, 2, 3, p, 2 * p, 3 * p + 1}) {
      SCOPED_TRACE(name_of({p, m, 2}));
      const Schedule half = v_half(p, m), min = v_min(p, m);
      EXPECT_LE(most_held(half), std::min(2 * m, p + 2));
      EXPECT_LE(most_held(min), std::min(2 * m, 2 * ((p + 4) / 3)));
      EXPECT_NO_THROW(clock_order(half));
      EXPECT_NO_THROW(clock_order(min));
    }
  }
  EXPECT_EQ(most_held(v_half(4, 16)), 6);
  EXPECT_EQ(most_held(v_half(6, 16)), 8);
  EXPECT_EQ(most_held(v_half(8, 16)), 10);
  EXPECT_EQ(most_held(v_min(4, 16)), 4);
  EXPECT_EQ(most_held(v_min(6, 16)), 6);
  EXPECT_EQ(most_held(v_min(8, 16)), 8);
}

// Compares the makespan in ticks, minus the 6m ticks of work of a rank.
TEST(ControllableMemory, IsIdleAsLongAsTheReference) {
  const auto idle = [](const Schedule& schedule, int p, int m) {
    int64_t ticks = 0;
    for (const auto& row : clock_order(schedule)) {
      ticks = std::max(ticks, row.back() / p + 1);
    }
    return ticks - 6 * m;
  };
  for (int p = 2; p <= 16; ++p) {
    for (const int m : {2 * p, 2 * p + 1, 5 * p}) {
      SCOPED_TRACE(name_of({p, m, 2}));
      const int half = p == 2 ? 1 : p % 2 == 0 ? 3 * p - 7 : 3 * p - 5;
      EXPECT_EQ(idle(v_half(p, m), p, m), half);
      EXPECT_EQ(idle(v_min(p, m), p, m), p % 3 == 0 ? 4 * p - 7 : 4 * p - 5);
    }
  }
  EXPECT_EQ(idle(v_half(1, 4), 1, 4), 0);
  EXPECT_EQ(idle(v_min(1, 4), 1, 4), 0);
}

TEST(BreadthFirstTest, IsGPipesWithOneStagePerRankAndLoopedWithRounds) {
  for (int m = 1; m <= 5; ++m) {
    EXPECT_EQ(to_csv(breadth_first({0, 1, 2}, m)), to_csv(fill_drain(3, m)));
    EXPECT_EQ(to_csv(breadth_first({0, 1, 2, 0, 1, 2}, m)),
              to_csv(looped_bfs(3, m, 2)));
  }
}

TEST(BreadthFirstTest, TakesAnyPlacement) {
  EXPECT_EQ(to_csv(breadth_first({0, 1, 1, 0}, 2)),
            "0F0,0F1,3F0,3F1,3B1,3B0,0B1,0B0\n"
            "1F0,1F1,2F0,2F1,2B1,2B0,1B1,1B0\n");
  validate(breadth_first({2, 0, 1, 1}, 4));
}

TEST(BreadthFirstTest, RefusesRanksWithoutStages) {
  EXPECT_THROW(breadth_first({0, 2}, 1), std::invalid_argument);
  EXPECT_THROW(breadth_first({1, 1}, 1), std::invalid_argument);
  EXPECT_THROW(breadth_first({-1}, 1), std::invalid_argument);
  EXPECT_THROW(breadth_first({}, 1), std::invalid_argument);
  EXPECT_THROW(breadth_first({0}, 0), std::invalid_argument);
}

TEST(NamedSchedule, IsWhatTheFunctionOfThatNameReturns) {
  const auto of = [](const char* name, int stages_per_rank) {
    return named_schedule(name, 3, 7, stages_per_rank).ranks;
  };
  EXPECT_EQ(of("fill-drain", 1), fill_drain(3, 7).ranks);
  EXPECT_EQ(of("1f1b", 1), one_forward_one_backward(3, 7).ranks);
  EXPECT_EQ(of("eager-1f1b", 1), eager_one_forward_one_backward(3, 7).ranks);
  EXPECT_EQ(of("interleaved-1f1b", 4), interleaved(3, 7, 4).ranks);
  EXPECT_EQ(of("looped-bfs", 4), looped_bfs(3, 7, 4).ranks);
  EXPECT_EQ(of("zb-h1", 1), zero_bubble_h1(3, 7).ranks);
  EXPECT_EQ(of("zb-h2", 1), zero_bubble_h2(3, 7).ranks);
  EXPECT_EQ(of("zb-interleaved", 4), zero_bubble_interleaved(3, 7, 4).ranks);
  EXPECT_EQ(of("zbv", 2), zero_bubble_v(3, 7).ranks);
  EXPECT_EQ(of("v-half", 2), v_half(3, 7).ranks);
  EXPECT_EQ(of("v-min", 2), v_min(3, 7).ranks);
  EXPECT_EQ(of("dualpipe-v", 2), dual_pipe_v(3, 7).ranks);
  EXPECT_EQ(of("forward-only", 1), forward_only(3, 7).ranks);
}

TEST(NamedSchedule, ListsAllNames) {
  const std::vector<std::string> names = schedule_names();
  EXPECT_THAT(names, IsSupersetOf({"fill-drain", "1f1b", "interleaved-1f1b",
                                   "zbv", "forward-only"}));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(),
            names.size());
  const auto lists_all = ThrowsMessage<std::invalid_argument>(
      AllOf(HasSubstr("\"gpipe\""),
            EndsWith("there are " + absl::StrJoin(names, ", "))));
  EXPECT_THAT([] { named_schedule("gpipe", 2, 2, 1); }, lists_all);
  EXPECT_THAT([] { fixed_stages_per_rank("gpipe"); }, lists_all);
}

TEST(NamedSchedule, SaysHowManyStagesPerRankItTakes) {
  EXPECT_EQ(fixed_stages_per_rank("1f1b"), 1);
  EXPECT_EQ(fixed_stages_per_rank("zbv"), 2);
  EXPECT_EQ(fixed_stages_per_rank("interleaved-1f1b"), std::nullopt);
  EXPECT_THAT(
      [] { named_schedule("1f1b", 2, 2, 2); },
      ThrowsMessage<std::invalid_argument>(
          AllOf(HasSubstr("1f1b has 1 stage per rank, not 2"),
                HasSubstr("interleaved-1f1b, looped-bfs, zb-interleaved, zbv"),
                Not(HasSubstr("fill-drain")))));
  EXPECT_THAT([] { named_schedule("zbv", 2, 2, 3); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("zbv has 2 stages per rank, not 3"),
                        Not(HasSubstr("v-half")))));
}

}  // namespace
}  // namespace gpipe
