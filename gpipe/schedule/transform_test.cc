#include "gpipe/schedule/transform.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/schedule/named.h"
#include "gpipe/schedule/order.h"
#include "gpipe/schedule/text.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/testing/thrown.h"

namespace gpipe {
namespace {

constexpr ActionKind F = ActionKind::kForward, B = ActionKind::kBackward,
                     I = ActionKind::kBackwardInput,
                     W = ActionKind::kBackwardWeight;

bool always(int) { return true; }

// The second of three ranks of 1F1B, and a rank of a zero-bubble schedule.
const Schedule kWhole = {
    {{{1, F, 0}, {1, F, 1}, {1, B, 0}, {1, F, 2}, {1, B, 1}, {1, B, 2}}}};
const Schedule kParts = {
    {{{0, F, 0}, {0, F, 1}, {0, I, 0}, {0, I, 1}, {0, W, 0}, {0, W, 1}}}};
// Two blocks of DualPipeV.
const Schedule kBlocks = {{{{0, F, 2},
                            {3, F, 1},
                            {0, F, 3, true},
                            {3, B, 1},
                            {3, F, 2, true},
                            {0, B, 0},
                            {3, B, 2}}}};

TEST(WithRecompute, PutsOneRightBeforeEachCheckpointedBackward) {
  const auto except_last = [](int i) { return i < 2; };
  EXPECT_EQ(to_csv(with_recompute(kWhole, except_last)),
            "1F0,1F1,1R0,1B0,1F2,1R1,1B1,1B2\n");
  EXPECT_EQ(to_csv(with_recompute(kParts, always)),
            "0F0,0F1,0R0,0I0,0R1,0I1,0W0,0W1\n");
}

TEST(WithRecompute, ChoosesCellsByStageAndMicrobatch) {
  const auto odd = [](int stage, int i) { return (stage + i) % 2 == 1; };
  EXPECT_EQ(to_csv(with_recompute(kWhole, odd)),
            "1F0,1F1,1R0,1B0,1F2,1B1,1R2,1B2\n");
  EXPECT_EQ(to_csv(with_recompute(kParts, odd)),
            "0F0,0F1,0I0,0R1,0I1,0W0,0W1\n");
}

TEST(WithRecompute, GivesTheSameForAPredicateOfTheMicrobatchAlone) {
  for (const std::string& name : schedule_names()) {
    if (name == "forward-only") continue;
    const Schedule plain =
        named_schedule(name, 2, 4, fixed_stages_per_rank(name).value_or(2));
    for (const auto placement :
         {RecomputePlacement::kBeforeBackward,
          RecomputePlacement::kWithBackward, RecomputePlacement::kAhead}) {
      const Schedule one = with_recompute(
          plain, [](int i) { return i != 1; }, placement);
      const Schedule two = with_recompute(
          plain, [](int, int i) { return i != 1; }, placement);
      EXPECT_EQ(to_csv(one), to_csv(two)) << name;
      EXPECT_NE(to_csv(one), to_csv(plain)) << name;
    }
  }
}

TEST(WithRecompute, MakesABlockWithTheBackward) {
  const auto with = RecomputePlacement::kWithBackward;
  EXPECT_EQ(to_csv(with_recompute(kWhole, always, with)),
            "1F0,1F1,(1R0;1B0),1F2,(1R1;1B1),(1R2;1B2)\n");
  EXPECT_EQ(to_csv(with_recompute(kParts, always, with)),
            "0F0,0F1,(0R0;0I0),(0R1;0I1),0W0,0W1\n");
}

TEST(WithRecompute, GoesAheadOfForwardsButNotOfItsOwn) {
  const auto ahead = RecomputePlacement::kAhead;
  // 1R0 stays behind 1F0, 1R1 goes ahead of 1F2, 1R2 stays behind 1B1.
  EXPECT_EQ(to_csv(with_recompute(kWhole, always, ahead)),
            "1F0,1R0,1F1,1B0,1R1,1F2,1B1,1R2,1B2\n");
  const auto odd = [](int i) { return i % 2 == 1; };
  EXPECT_EQ(to_csv(with_recompute(kWhole, odd, ahead)),
            "1F0,1F1,1B0,1R1,1F2,1B1,1B2\n");
  // R does not move ahead of a W either.
  const Schedule weights = {
      {{{0, F, 0}, {0, F, 1}, {0, I, 0}, {0, W, 0}, {0, F, 2}, {0, I, 1}}}};
  EXPECT_EQ(to_csv(with_recompute(weights, odd, ahead)),
            "0F0,0F1,0I0,0W0,0R1,0F2,0I1\n");
}

TEST(WithRecompute, StaysOutOfBlocks) {
  const std::string right_before =
      "0F2,3F1,3R1,(0F3;3B1)OVERLAP_F_B,0R0,(3F2;0B0)OVERLAP_F_B,3R2,3B2\n";
  EXPECT_EQ(to_csv(with_recompute(kBlocks, always)), right_before);
  EXPECT_EQ(to_csv(with_recompute(kBlocks, always, RecomputePlacement::kAhead)),
            right_before);
  EXPECT_EQ(
      to_csv(
          with_recompute(kBlocks, always, RecomputePlacement::kWithBackward)),
      "0F2,3F1,3R1,(0F3;3B1)OVERLAP_F_B,0R0,(3F2;0B0)OVERLAP_F_B,(3R2;3B2)\n");
}

// The block begins with the backward. R may not join the block as a third
// action, nor be inside it.
TEST(WithRecompute, StaysOutOfBlocksThatBeginWithTheBackward) {
  const Schedule schedule =
      parse_schedule("0F0,0F1,(0B0;0F2)OVERLAP_F_B,0B1,0B2\n");
  const auto out = [&](RecomputePlacement placement) {
    const Schedule result = with_recompute(schedule, always, placement);
    EXPECT_NO_THROW(validate(result));
    return to_csv(result);
  };
  EXPECT_EQ(out(RecomputePlacement::kBeforeBackward),
            "0F0,0F1,0R0,(0B0;0F2)OVERLAP_F_B,0R1,0B1,0R2,0B2\n");
  EXPECT_EQ(out(RecomputePlacement::kWithBackward),
            "0F0,0F1,0R0,(0B0;0F2)OVERLAP_F_B,(0R1;0B1),(0R2;0B2)\n");
  EXPECT_EQ(out(RecomputePlacement::kAhead),
            "0F0,0R0,0F1,(0B0;0F2)OVERLAP_F_B,0R1,0B1,0R2,0B2\n");
}

TEST(WithRecompute, AddsOneForEachBackwardOfAnySchedule) {
  for (const std::string& name : schedule_names()) {
    const int v = fixed_stages_per_rank(name).value_or(2);
    const Schedule schedule = named_schedule(name, 3, 7, v);
    for (const auto placement :
         {RecomputePlacement::kBeforeBackward,
          RecomputePlacement::kWithBackward, RecomputePlacement::kAhead}) {
      const Schedule out = with_recompute(
          schedule, [](int i) { return i != 6; }, placement);
      int recomputes = 0;
      for (const auto& actions : out.ranks) {
        for (auto r = actions.begin(); r != actions.end(); ++r) {
          if (r->kind != ActionKind::kRecompute) continue;
          ++recomputes;
          const auto same = [&](ActionKind kind) {
            return [&, kind](const Action& a) {
              return a.kind == kind && a.stage == r->stage &&
                     a.microbatch == r->microbatch;
            };
          };
          EXPECT_TRUE(std::any_of(actions.begin(), r, same(F))) << name;
          EXPECT_TRUE(std::any_of(r, actions.end(), same(B)) ||
                      std::any_of(r, actions.end(), same(I)))
              << name;
        }
      }
      EXPECT_EQ(recomputes, name == "forward-only" ? 0 : 3 * v * 6) << name;
      EXPECT_NO_THROW(clock_order(out)) << name;
      // The other actions are the same.
      const Schedule without = select(out, [](const Action& a) {
        return a.kind != ActionKind::kRecompute;
      });
      EXPECT_EQ(without.ranks, schedule.ranks) << name;
    }
  }
}

TEST(WithRecompute, TakesOutTheOffloadsOfItsCells) {
  const Schedule offloaded =
      with_offload(kWhole, [](int, int) { return true; });
  EXPECT_EQ(to_csv(with_recompute(offloaded, [](int i) { return i == 0; })),
            "1F0,1F1,1O1,1R0,1B0,1L1,1F2,1O2,1L2,1B1,1B2\n");
}

bool any_cell(int, int) { return true; }

TEST(WithOffload, CopiesAfterTheForwardAndBackSomeActionsBeforeTheBackward) {
  EXPECT_EQ(to_csv(with_offload(kWhole, any_cell, 0)),
            "1F0,1O0,1F1,1O1,1L0,1B0,1F2,1O2,1L1,1B1,1L2,1B2\n");
  EXPECT_EQ(to_csv(with_offload(kWhole, any_cell)),
            "1F0,1O0,1L0,1F1,1O1,1B0,1L1,1F2,1O2,1L2,1B1,1B2\n");
  EXPECT_EQ(to_csv(with_offload(kWhole, any_cell, 2)),
            "1F0,1O0,1L0,1F1,1O1,1L1,1B0,1F2,1O2,1L2,1B1,1B2\n");
  EXPECT_EQ(to_csv(with_offload(kParts, any_cell)),
            "0F0,0O0,0L0,0F1,0O1,0L1,0I0,0I1,0W0,0W1\n");
}

TEST(WithOffload, ChoosesCells) {
  EXPECT_EQ(to_csv(with_offload(
                kWhole, [](int stage, int i) { return stage == 1 && i == 1; })),
            "1F0,1F1,1O1,1B0,1L1,1F2,1B1,1B2\n");
  EXPECT_EQ(
      to_csv(with_offload(kWhole, [](int stage, int) { return stage == 0; })),
      to_csv(kWhole));
}

TEST(WithOffload, KeepsAPairRightBeforeItsBackward) {
  EXPECT_EQ(
      to_csv(with_offload(Schedule{{{{0, F, 0}, {0, B, 0}}}}, any_cell, 3)),
      "0F0,0O0,0L0,0B0\n");
}

TEST(WithOffload, CopiesWhatARecomputeMakes) {
  const Schedule ahead =
      with_recompute(kWhole, always, RecomputePlacement::kAhead);
  EXPECT_EQ(to_csv(with_offload(ahead, any_cell)),
            "1F0,1R0,1O0,1L0,1F1,1B0,1R1,1O1,1L1,1F2,1B1,1R2,1O2,1L2,1B2\n");
  // Nothing is held between the actions of a block.
  const Schedule late =
      with_recompute(kWhole, always, RecomputePlacement::kWithBackward);
  EXPECT_EQ(to_csv(with_offload(late, any_cell)), to_csv(late));
}

TEST(WithOffload, StaysOutOfBlocks) {
  const Schedule schedule =
      parse_schedule("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n");
  const auto out = [&](int ahead) {
    const Schedule result = with_offload(schedule, any_cell, ahead);
    EXPECT_NO_THROW(validate(result));
    return to_csv(result);
  };
  EXPECT_EQ(out(0),
            "0F0,0O0,0F1,0O1,0L0,(0F2;0B0)OVERLAP_F_B,0O2,0L1,0B1,0L2,0B2\n");
  // 0L1 would be between the actions of the block.
  EXPECT_EQ(out(1),
            "0F0,0O0,0L0,0F1,0O1,0L1,(0F2;0B0)OVERLAP_F_B,0O2,0L2,0B1,0B2\n");
  EXPECT_EQ(out(2), out(1));
}

TEST(WithOffload, KeepsPairsThatAreThere) {
  const auto even = [](int, int i) { return i % 2 == 0; };
  const Schedule some = with_offload(kWhole, even, 0);
  EXPECT_EQ(to_csv(with_offload(some, even, 2)), to_csv(some));
  EXPECT_EQ(to_csv(with_offload(some, any_cell, 0)),
            to_csv(with_offload(kWhole, any_cell, 0)));
  // The copies that are there do not count as actions.
  EXPECT_EQ(to_csv(with_offload(some, any_cell, 1)),
            "1F0,1O0,1F1,1O1,1L0,1B0,1L1,1F2,1O2,1B1,1L2,1B2\n");
}

TEST(WithOffload, DoesNothingWithoutBackward) {
  const Schedule forwards = {{{{0, F, 0}, {0, F, 1}}}};
  EXPECT_EQ(to_csv(with_offload(forwards, any_cell)), to_csv(forwards));
}

TEST(WithOffload, RefusesANegativeDistance) {
  EXPECT_EQ(testing::thrown<std::invalid_argument>(
                [] { with_offload(kWhole, any_cell, -1); }),
            "with_offload: ahead is -1, but it is a number of actions, 0 "
            "or more");
}

TEST(WithOffload, AddsAPairForEachCellOfAnySchedule) {
  for (const std::string& name : schedule_names()) {
    const int v = fixed_stages_per_rank(name).value_or(2);
    const Schedule schedule = named_schedule(name, 3, 7, v);
    for (const int ahead : {0, 1, 4}) {
      const Schedule out = with_offload(schedule, any_cell, ahead);
      EXPECT_NO_THROW(validate(out)) << name;
      int copies = 0;
      for (const auto& actions : out.ranks) {
        for (const Action& action : actions) copies += !is_compute(action.kind);
      }
      EXPECT_EQ(copies, name == "forward-only" ? 0 : 2 * 3 * v * 7) << name;
      const Schedule without =
          select(out, [](const Action& a) { return is_compute(a.kind); });
      EXPECT_EQ(without.ranks, schedule.ranks) << name;
    }
  }
}

TEST(DistantCells, CountsTheActionsBetweenForwardAndBackward) {
  // 1F0 and 1B0 have one action between them, 1F1 and 1B1 two, 1F2 and 1B2 one.
  const auto chosen = [](const Schedule& schedule, int stage, int actions) {
    const auto distant = distant_cells(schedule, actions);
    std::vector<bool> result;
    for (int i = 0; i < 3; ++i) result.push_back(distant(stage, i));
    return result;
  };
  EXPECT_EQ(chosen(kWhole, 1, 1), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(chosen(kWhole, 1, 2), (std::vector<bool>{false, true, false}));
  EXPECT_EQ(chosen(kWhole, 1, 3), (std::vector<bool>{false, false, false}));
  EXPECT_EQ(chosen(kWhole, 0, 0), (std::vector<bool>{false, false, false}));
  // Copies do not count, and a recompute counts as the forward.
  EXPECT_EQ(chosen(with_offload(kWhole, any_cell), 1, 2),
            (std::vector<bool>{false, true, false}));
  EXPECT_EQ(chosen(with_recompute(kWhole, always), 1, 1),
            (std::vector<bool>{false, false, false}));
}

TEST(Select, KeepsTheOrder) {
  const auto forwards = [](const Action& a) { return a.kind == F; };
  EXPECT_EQ(to_csv(select(kWhole, forwards)), "1F0,1F1,1F2\n");
}

TEST(Select, UndoesBlocksThatAreNotWhole) {
  const auto without = [](Action out) {
    return [out](const Action& a) {
      return a.stage != out.stage || a.kind != out.kind ||
             a.microbatch != out.microbatch;
    };
  };
  EXPECT_EQ(to_csv(select(kBlocks, without({3, B, 1}))),
            "0F2,3F1,0F3,(3F2;0B0)OVERLAP_F_B,3B2\n");
  EXPECT_EQ(to_csv(select(kBlocks, without({0, F, 3}))),
            "0F2,3F1,3B1,(3F2;0B0)OVERLAP_F_B,3B2\n");
}

}  // namespace
}  // namespace gpipe
