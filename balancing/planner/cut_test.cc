#include "balancing/planner/cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "balancing/planner/evaluate.h"
#include "balancing/planner/testing.h"

namespace gpipe::balancing::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

constexpr double kNone = std::numeric_limits<double>::infinity();

// Returns the largest time of a stage, or infinity if a stage is too large.
double largest_time(const Blocks& blocks, const std::vector<double>& work,
                    const std::vector<StageLimit>& stages,
                    const Balance& balance) {
  double largest = 0;
  int64_t first = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    GrowingBlock block(blocks, first);
    double seconds = 0;
    for (int64_t k = 0; k < balance[s]; ++k) {
      seconds += work[static_cast<std::size_t>(first + k)];
      block.extend();
    }
    if (std::ranges::all_of(stages[s].ways, [&](const auto& moments) {
          return peak_bytes(moments, block) > stages[s].bytes;
        })) {
      return kNone;
    }
    largest = std::max(largest, seconds / stages[s].speed);
    first += balance[s];
  }
  return largest;
}

TEST(BottleneckCutTest, EqualsBruteForce) {
  int infeasible = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    Problem problem;
    const auto layers = static_cast<std::size_t>(dice.in(4, 9));
    problem.workloads.push_back(random_workload(dice, layers, 1));
    const Blocks blocks(problem, problem.workloads[0]);
    std::vector<double> work;
    for (std::size_t k = 0; k < layers; ++k) {
      work.push_back(static_cast<double>(dice.in(0, 20)));
    }
    std::vector<StageLimit> stages(static_cast<std::size_t>(dice.in(1, 4)));
    for (StageLimit& stage : stages) {
      stage.speed = static_cast<double>(dice.in(1, 3));
      if (dice.one_in(2)) stage.bytes = static_cast<double>(dice.in(50, 300));
      const auto some = [&] { return static_cast<int>(dice.in(0, 3)); };
      for (int64_t ways = dice.in(1, 2); ways > 0; --ways) {
        stage.ways.push_back({{{some(), some(), some() / 2}}});
      }
    }
    double least = kNone;
    for_each_balance(blocks.layers(), static_cast<int64_t>(stages.size()),
                     [&](const Balance& balance) {
                       least = std::min(
                           least, largest_time(blocks, work, stages, balance));
                     });
    const auto cut = bottleneck_cut(blocks, work, stages);
    if (least == kNone) {
      ++infeasible;
      EXPECT_FALSE(cut);
      continue;
    }
    ASSERT_TRUE(cut);
    EXPECT_NEAR(largest_time(blocks, work, stages, *cut), least, 1e-6);
  }
  EXPECT_GT(infeasible, 10);
  EXPECT_LT(infeasible, 150);
}

TEST(BottleneckCutTest, SharesWhatTheBottleneckLeaves) {
  const Problem problem = simple_problem({9, 1, 1, 1, 1, 1, 1}, 3, 1, {"1f1b"});
  const Blocks blocks(problem, problem.workloads[0]);
  EXPECT_THAT(
      bottleneck_cut(blocks, {9, 1, 1, 1, 1, 1, 1}, std::vector<StageLimit>(3)),
      Optional(ElementsAre(1, 3, 3)));
}

TEST(LowerBoundTest, IsTightForEvenCutsOfOneStagePerRank) {
  const auto bound = [](const char* schedule) {
    const Problem problem = simple_problem({1, 1, 1, 1}, 4, 8, {schedule});
    return lower_bound(problem, {schedule},
                       Blocks(problem, problem.workloads[0]));
  };
  EXPECT_NEAR(bound("1f1b"), (8 + 3) * 3, 1e-6);
  EXPECT_NEAR(bound("zb-h2"), 8 * 3 + 3, 1e-6);
}

}  // namespace
}  // namespace gpipe::balancing::planner
