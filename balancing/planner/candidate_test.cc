#include "balancing/planner/candidate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "balancing/planner/testing.h"
#include "gpipe/schedule.h"

namespace gpipe::balancing::planner {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> names_of(const std::vector<Candidate>& candidates) {
  std::vector<std::string> names;
  for (const Candidate& each : candidates) {
    names.push_back(each.schedule + " " + std::to_string(each.stages_per_rank) +
                    " " + to_string(each.recompute) +
                    (each.offload ? " offload" : ""));
  }
  return names;
}

TEST(CandidatesTest, AreOrderedTheSimplestFirst) {
  Problem problem =
      simple_problem({1, 1, 1, 1}, 2, 2, {"zbv", "looped-bfs", "fill-drain"});
  problem.recomputes = {Checkpoint::kNever, Checkpoint::kAlways, kWhereNeeded};
  problem.offload = true;
  // Four stages per rank are too many for four layers. looped-bfs with one is
  // fill-drain. kWhereNeeded needs a memory limit.
  EXPECT_THAT(
      names_of(candidates(problem)),
      ElementsAre("fill-drain 1 never", "fill-drain 1 always",
                  "looped-bfs 2 never", "looped-bfs 2 always", "zbv 2 never",
                  "zbv 2 always", "fill-drain 1 never offload",
                  "looped-bfs 2 never offload", "zbv 2 never offload"));
  problem.schedules = {"looped-bfs"};
  problem.offload = false;
  problem.ranks[0].memory_bytes = 1e9;
  problem.stages_per_rank = {2, 1, 2};
  EXPECT_THAT(names_of(candidates(problem)),
              ElementsAre("looped-bfs 1 never", "looped-bfs 1 always",
                          "looped-bfs 1 where_needed", "looped-bfs 2 never",
                          "looped-bfs 2 always", "looped-bfs 2 where_needed"));
}

// candidates() leaves these out.
TEST(CandidatesTest, SchedulesForSeveralStagesHaveTwinsWithOne) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (int microbatches = 1; microbatches <= 12; ++microbatches) {
      const auto ranks_of = [&](const char* name) {
        return named_schedule(name, ranks, microbatches, 1).ranks;
      };
      EXPECT_EQ(ranks_of("interleaved-1f1b"), ranks_of("eager-1f1b"));
      EXPECT_EQ(ranks_of("looped-bfs"), ranks_of("fill-drain"));
      EXPECT_EQ(ranks_of("zb-interleaved"), ranks_of("zb-h1"));
    }
  }
}

}  // namespace
}  // namespace gpipe::balancing::planner
