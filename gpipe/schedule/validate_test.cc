#include "gpipe/schedule/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>

#include "gpipe/schedule/named.h"
#include "gpipe/schedule/text.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/testing/thrown.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string objection(const Schedule& schedule) {
  return testing::thrown<std::invalid_argument>([&] { validate(schedule); },
                                                "");
}

std::string objection(const char* csv) {
  return objection(parse_schedule(csv));
}

// Returns the error text without the grid.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

TEST(Validate, AcceptsAllNamedSchedules) {
  for (const std::string& name : schedule_names()) {
    const auto fixed = fixed_stages_per_rank(name);
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (int microbatches = 1; microbatches <= 12; ++microbatches) {
        for (int v = fixed.value_or(1); v <= fixed.value_or(3); ++v) {
          const auto schedule = named_schedule(name, ranks, microbatches, v);
          EXPECT_EQ(objection(schedule), "") << name;
          for (const auto placement : {RecomputePlacement::kBeforeBackward,
                                       RecomputePlacement::kWithBackward,
                                       RecomputePlacement::kAhead}) {
            const auto except_last = [&](int i) {
              return i + 1 < microbatches;
            };
            EXPECT_EQ(
                objection(with_recompute(schedule, except_last, placement)), "")
                << name;
          }
        }
      }
    }
  }
}

TEST(Validate, AcceptsWhatIsNotUsualButCanBeDone) {
  for (const char* csv : {
           "0F0\n",                             // forward only
           "0F0,1F0,1B0,0B0\n",                 // all on one rank
           "\n0F0,0B0\n\n",                     // ranks with nothing to do
           "1F0,1B0\n0F0,0B0\n",                // ranks in another order
           "0F0,0I0,0W0\n1F0,1B0\n",            // B in parts on one stage only
           "0F0,0F1,0B1,0I0,0W0\n",             // ... for one micro-batch only
           "0F0,0R0,0F1,0B0,0B1\n",             // an early recompute
           "0F0,(0R0;0I0),0W0\n",               // a late recompute
           "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n",    // a block, in either order
           "0F0,(0B0;0F1)OVERLAP_F_B,0B1\n",    //
           "0F0,(0F1;0I0)OVERLAP_F_B,0W0,0B1",  //
           "0F0,0O0,0L0,0B0\n",                 // offload of one cell
           "0F0,0F1,0B1,0O0,0L0,0I0,0W0\n",     // ... begun later
           "0F0,0R0,0O0,0L0,0B0\n",             // ... after the recompute
       }) {
    EXPECT_EQ(objection(csv), "") << csv;
  }
}

// One whole text: what is wrong, where, what to do, and a grid.
TEST(Validate, ShowsAGrid) {
  EXPECT_EQ(objection("0F0,0F1,0B1\n1F0,1F1,1B1,1B0\n"),
            "0B0 is missing: 0F0 (rank 0, position 0) has no backward, but "
            "others do; add it, or 0I0 and 0W0\n"
            "tick    0   1   2   3   4\n"
            "rank 0  0F0 0F1 .   .   0B1\n"
            "rank 1  .   1F0 1F1 1B1 1B0\n");
}

TEST(Validate, TellsADeadlockAsTheCircleOfWaiting) {
  EXPECT_EQ(objection("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"),
            "deadlock: rank 0 waits at 0B0 (position 1) for 1B0 of rank 1 "
            "(position 2), which waits at 1F1 (position 1) for 0F1 of rank 0 "
            "(position 2): on one of these ranks, move what the others wait "
            "for ahead of where it waits\n"
            "tick    0   1    2\n"
            "rank 0  0F0 0B0? .\n"
            "rank 1  .   1F0  1F1?\n");
  // Rank 0 waits for rank 1. Only ranks 1 and 2 wait for each other.
  EXPECT_THAT(
      objection("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n2F1,2B1,2F0,2B0\n"),
      StartsWith("deadlock: rank 1 waits at 1B0 (position 1) for 2B0 of rank 2 "
                 "(position 3), which waits at 2F1 (position 0) for 1F1 of "
                 "rank 1 (position 2): "));
}

TEST(Validate, TellsADeadlockOfARankWithItself) {
  EXPECT_THAT(objection("1F0,0F0\n"),
              StartsWith("deadlock: rank 0 waits at 1F0 (position 0) for 0F0 "
                         "of rank 0 (position 1)"));
}

TEST(Validate, FindsTheDeadlockThatABlockMakes) {
  // Without the block, 0F1 runs before 0B0, and 1F1 gets its input.
  EXPECT_EQ(objection("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"), "");
  EXPECT_THAT(objection("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n"),
              StartsWith("deadlock: rank 0 waits at 0F1 (position 1) for 1B0 "
                         "of rank 1 (position 2), which waits at 1F1 "
                         "(position 1) for 0F1 of rank 0 (position 1)"));
}

TEST(Validate, FindsTheDeadlockOfALateRecompute) {
  // The block waits for the gradient, not for its own recompute.
  EXPECT_THAT(objection("0F0,(0R0;0B0),0F1,0B1\n1F0,1F1,1B0,1B1\n"),
              StartsWith("deadlock: rank 0 waits at 0R0 (position 1) for 1B0 "
                         "of rank 1 (position 2), which waits at 1F1 "
                         "(position 1) for 0F1 of rank 0 (position 3)"));
}

TEST(Validate, TellsOnlyTheBeginningOfALargeCircle) {
  // Rank s has the stages s and s + 12, and runs the later one first.
  std::string csv;
  for (int s = 0; s < 12; ++s) {
    csv += std::to_string(s + 12) + "F0," + std::to_string(s) + "F0\n";
  }
  EXPECT_THAT(
      objection(csv.c_str()),
      AllOf(StartsWith("deadlock: rank 0 waits at 12F0 (position 0) for 11F0 "
                       "of rank 11 (position 1), which waits at 23F0 (position "
                       "0) for 22F0 of rank 10 (position 0), which waits at "),
            HasSubstr("for 16F0 of rank 4 (position 0), and so on over 12 "
                      "ranks: ")));
}

struct Case {
  const char* csv;
  std::string message;
};

// The parts that several errors have in common.
const std::string kGap = ": number them from 0 without a gap";
const std::string kForwards =
    ", and every stage needs a forward of every micro-batch; add it to rank ";
const std::string kWholeOrParts =
    " are both there: a backward is whole (B) or in two parts (I and W); take "
    "out one or the other";
const std::string kNoBackward =
    " is for a backward, and this schedule has none: take it out";
const std::string kOrder = ", which it needs: move it behind that";
const std::string kNoBlock =
    " cannot be a block: a block is a forward and a backward of two "
    "micro-batches, or a recompute and its backward; clear the fused_with_next "
    "of ";

const Case kWrong[] = {
    // Gaps.
    {"0F0\n2F0\n", "there is 2F0 (rank 1, position 0), but no stage 1" + kGap},
    {"0F1,0F2,0B2,0B1\n",
     "there is 0F1 (rank 0, position 0), but no micro-batch 0" + kGap},
    {"0F0,2147483647F0\n",
     "there is 2147483647F0 (rank 0, position 1), but no stage 1" + kGap},
    // Ranks.
    {"0F0,0F1,1F0\n1F1\n1F2,1F3,0F2,0F3,1B0\n",
     "1F0 (rank 0, position 2) is not on rank 2 with the rest of stage 1: a "
     "stage is on one rank; move it there"},
    // Forwards. In 1F1B of torch 2.11, for 2 ranks and 3 micro-batches, their
    // numbers are off by one on the last rank.
    {"0F0,0F1,0B0,0F2,0B1,0B2\n1F1,1B0,1F2,1B1,1F3,1B2\n",
     "0F3 is missing: there is 1F3 (rank 1, position 4)" + kForwards + "0"},
    {"0F0,0B0\n1B0\n",
     "1F0 is missing: there is 0F0 (rank 0, position 0)" + kForwards + "1"},
    // Doubles.
    {"0F0,0F1,0F0\n",
     "0F0 comes twice, at positions 0 and 2 of rank 0: take one out"},
    {"0F0,0R0,0B0,0R0\n",
     "0R0 comes twice, at positions 1 and 3 of rank 0: take one out"},
    // Backwards.
    {"0F0,0B0,0F1\n",
     "0B1 is missing: 0F1 (rank 0, position 2) has no backward, but others do; "
     "add it, or 0I1 and 0W1"},
    {"0F0,0I0\n",
     "0W0 is missing: 0I0 (rank 0, position 1) is one part of a backward and "
     "needs the other; add it to rank 0"},
    {"0F0,0W0\n",
     "0I0 is missing: 0W0 (rank 0, position 1) is one part of a backward and "
     "needs the other; add it to rank 0"},
    {"0F0,0I0,0W0,0B0\n",
     "0B0 (rank 0, position 3) and 0I0 (rank 0, position 1)" + kWholeOrParts},
    {"0F0,0B0,0W0\n",
     "0B0 (rank 0, position 1) and 0W0 (rank 0, position 2)" + kWholeOrParts},
    {"0F0,0R0\n", "0R0 (rank 0, position 1)" + kNoBackward},
    {"0F0,0O0\n", "0O0 (rank 0, position 1)" + kNoBackward},
    {"0F0,0L0\n", "0L0 (rank 0, position 1)" + kNoBackward},
    // Copies to and from the host.
    {"0F0,0O0,0B0\n",
     "0L0 is missing: 0O0 (rank 0, position 1) copies to the host what the "
     "backward needs; add the copy back to rank 0"},
    {"0F0,0B0\n1F0,1L0,1B0\n",
     "1O0 is missing: 1L0 (rank 1, position 1) copies back what an offload "
     "copied to the host; add the offload to rank 1"},
    {"0F0,0O0,0L0,0O0,0B0\n",
     "0O0 comes twice, at positions 1 and 3 of rank 0: take one out"},
    {"0F0,0O0,0L0,0L0,0B0\n",
     "0L0 comes twice, at positions 2 and 3 of rank 0: take one out"},
    // Order on a rank.
    {"0O0,0F0,0L0,0B0\n",
     "0O0 (rank 0, position 0) comes before 0F0 (position 1)" + kOrder},
    {"0F0,0O0,0R0,0L0,0B0\n",
     "0O0 (rank 0, position 1) comes before 0R0 (position 2)" + kOrder},
    {"0F0,0L0,0O0,0B0\n",
     "0L0 (rank 0, position 1) comes before 0O0 (position 2)" + kOrder},
    {"0F0,0O0,0B0,0L0\n",
     "0B0 (rank 0, position 2) comes before 0L0 (position 3)" + kOrder},
    {"0F0,0O0,0I0,0L0,0W0\n",
     "0I0 (rank 0, position 2) comes before 0L0 (position 3)" + kOrder},
    {"0B0,0F0\n",
     "0B0 (rank 0, position 0) comes before 0F0 (position 1)" + kOrder},
    {"0F0,0W0,0I0\n",
     "0W0 (rank 0, position 1) comes before 0I0 (position 2)" + kOrder},
    {"0F0,0B0,0R0\n",
     "0B0 (rank 0, position 1) comes before 0R0 (position 2)" + kOrder},
    {"0R0,0F0,0B0\n",
     "0R0 (rank 0, position 0) comes before 0F0 (position 1)" + kOrder},
    // Blocks.
    {"(0F0;0F1)\n", "0F0 and 0F1 (rank 0, position 0)" + kNoBlock + "0F0"},
    {"(0F0;0B0)OVERLAP_F_B\n",
     "0F0 and 0B0 (rank 0, position 0)" + kNoBlock + "0F0"},
    {"0F0,0F1,0R0,(0R1;0B0),0B1\n",
     "0R1 and 0B0 (rank 0, position 3)" + kNoBlock + "0R1"},
    {"0F0,1F0,(0R0;1B0),0B0\n",
     "0R0 and 1B0 (rank 0, position 2)" + kNoBlock + "0R0"},
    {"(0F0;0O0),0L0,0B0\n",
     "0F0 and 0O0 (rank 0, position 0)" + kNoBlock + "0F0"},
    {"0F0,0O0,(0L0;0B0)\n",
     "0L0 and 0B0 (rank 0, position 2)" + kNoBlock + "0L0"},
    {"0F0,(0F1;0B0;0B1)\n",
     "0B0 (rank 0, position 2) makes a block with both its neighbours: a block "
     "has two actions; clear a fused_with_next"},
};
TEST(Validate, SaysWhatIsWrongWhereAndWhatToDo) {
  for (const Case& c : kWrong) {
    EXPECT_EQ(first_line(objection(c.csv)), c.message) << c.csv;
    EXPECT_THAT(objection(c.csv), HasSubstr("\ntick ")) << c.csv;
  }
}

// These schedules have no text form.
TEST(Validate, RefusesNegativeNumbersEndlessBlocksAndNothing) {
  EXPECT_EQ(first_line(objection(Schedule{{{{0, ActionKind::kForward, -1}}}})),
            "0F-1 (rank 0, position 0) has a negative number: stages and "
            "micro-batches are numbered from 0");
  EXPECT_EQ(first_line(objection(Schedule{{{{-2, ActionKind::kForward, 0}}}})),
            "-2F0 (rank 0, position 0) has a negative number: stages and "
            "micro-batches are numbered from 0");
  EXPECT_EQ(
      first_line(objection(Schedule{{{{0, ActionKind::kForward, 0, true}}}})),
      "0F0 (rank 0, position 0) makes a block with the next action, but "
      "is the last one of its rank: clear its fused_with_next");
  for (const Schedule& nothing : {Schedule(), Schedule{{{}, {}}}}) {
    EXPECT_EQ(objection(nothing),
              "the schedule has no actions: it needs at least a forward");
  }
}

TEST(Validate, NamesWhatIsMissingBelowVeryLargeNumbers) {
  constexpr int kLargest = std::numeric_limits<int>::max();
  Schedule schedule = {{{}}};
  for (int i = 0; i < 1000; ++i) {
    schedule.ranks[0].push_back({i, ActionKind::kForward, 0});
    schedule.ranks[0].push_back({0, ActionKind::kBackward, i});
  }
  // A valid schedule with these numbers would need 10^6 forwards.
  EXPECT_THAT(objection(schedule), StartsWith("0F1 is missing"));
  schedule.ranks[0][0] = {kLargest, ActionKind::kForward, kLargest};
  EXPECT_THAT(objection(schedule),
              StartsWith("there is 2147483647F2147483647"));
}

// ---- The error names the right action, wherever it is.

class ValidateEach : public ::testing::TestWithParam<const char*> {
 protected:
  // Calls f(action, rank, position) for all actions of the schedule.
  template <typename F>
  void for_each(const F& f) {
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      for (std::size_t k = 0; k < schedule_.ranks[rank].size(); ++k) {
        f(schedule_.ranks[rank][k], rank, k);
      }
    }
  }

  const Schedule schedule_ = with_offload(
      with_recompute(
          named_schedule(GetParam(), 3, 5,
                         fixed_stages_per_rank(GetParam()).value_or(2)),
          [](int i) { return i < 2; }, RecomputePlacement::kBeforeBackward),
      [](int stage, int i) { return (stage + i) % 2 == 0; });
};

TEST_P(ValidateEach, NamesWhatWasDropped) {
  for_each([&](const Action& action, std::size_t rank, std::size_t k) {
    Schedule mutant = schedule_;
    auto& actions = mutant.ranks[rank];
    if (actions[k].fused_with_next || (k > 0 && actions[k - 1].fused_with_next))
      return;
    actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(k));
    const std::string message = objection(mutant);
    if (action.kind == ActionKind::kRecompute) {
      EXPECT_EQ(message, "");
    } else {
      EXPECT_THAT(message, StartsWith(to_string(action) + " is missing: "));
    }
  });
}

TEST_P(ValidateEach, NamesWhatWasDoubled) {
  for_each([&](const Action& action, std::size_t rank, std::size_t k) {
    Schedule mutant = schedule_;
    mutant.ranks[rank].push_back(action);
    EXPECT_THAT(objection(mutant),
                StartsWith(to_string(action) + " comes twice, at positions " +
                           std::to_string(k) + " and " +
                           std::to_string(schedule_.ranks[rank].size()) +
                           " of rank " + std::to_string(rank)));
  });
}

TEST_P(ValidateEach, NamesWhatWasMovedToAnotherRank) {
  for_each([&](const Action& action, std::size_t rank, std::size_t k) {
    for (std::size_t other = 0; other < schedule_.ranks.size(); ++other) {
      if (other == rank) continue;
      Schedule mutant = schedule_;
      mutant.ranks[rank].erase(mutant.ranks[rank].begin() +
                               static_cast<std::ptrdiff_t>(k));
      mutant.ranks[other].insert(mutant.ranks[other].begin(), action);
      EXPECT_THAT(
          objection(mutant),
          StartsWith(to_string(action) + " (rank " + std::to_string(other) +
                     ", position 0) is not on rank " + std::to_string(rank) +
                     " with the rest of stage " +
                     std::to_string(action.stage)));
    }
  });
}

TEST_P(ValidateEach, NamesWhatWasMovedToTheBeginning) {
  for_each([&](const Action& action, std::size_t rank, std::size_t k) {
    Schedule mutant = schedule_;
    auto& actions = mutant.ranks[rank];
    actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(k));
    actions.insert(actions.begin(), action);
    const std::string message = objection(mutant);
    const std::string begin =
        to_string(action) + " (rank " + std::to_string(rank) + ", position 0) ";
    if (action.kind == ActionKind::kForward) {
      EXPECT_THAT(message, Not(HasSubstr("comes before")));
    } else if (!action.fused_with_next) {
      EXPECT_THAT(message, StartsWith(begin + "comes before ")) << k;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, ValidateEach,
                         ::testing::Values("fill-drain", "1f1b",
                                           "interleaved-1f1b", "zb-h1", "zbv",
                                           "dualpipe-v"),
                         [](const auto& info) {
                           std::string name;
                           for (const char c : std::string(info.param)) {
                             if (c != '-') name += c;
                           }
                           return name;
                         });

}  // namespace
}  // namespace gpipe
