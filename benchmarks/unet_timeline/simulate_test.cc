#include "benchmarks/unet_timeline/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/unet_timeline/rows.h"
#include "gpipe/simulation.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// The reduced table, with convolutions of two channels.
class SimulateRows : public ::testing::Test {
 protected:
  SimulateRows() : benchmark_(timeline_benchmark()) {
    options_.mode = Mode::kSimulate;
    options_.small = true;
    options_.simulate.profile_seconds = 0;
    for (const Experiment& row : benchmark_.small.experiments) {
      Outcome& outcome = rows_.emplace_back();
      outcome.experiment = row;
      outcome.experiment.size = {5, 2};
    }
  }

  void simulate() { simulate_rows(benchmark_, options_, &rows_, &notes_); }

  const Outcome& row(const std::string& name) const {
    for (const Outcome& row : rows_) {
      if (row.experiment.name == name) return row;
    }
    throw std::out_of_range(name);
  }
  // Returns the actions of the first rank in a row, in the order of time.
  std::vector<Action> actions(const std::string& name) const {
    std::vector<Action> actions;
    for (const Span& span : row(name).timeline->ranks.at(0)) {
      actions.push_back(span.action);
    }
    return actions;
  }
  double seconds(const std::string& name) const {
    return row(name).durations.at(0).wall_seconds;
  }

  Benchmark benchmark_;
  RunOptions options_;
  std::vector<Outcome> rows_;
  std::vector<std::string> notes_;
};

TEST_F(SimulateRows, EachRowHasATimelineOfItsMiniBatch) {
  simulate();
  for (const Outcome& row : rows_) {
    ASSERT_TRUE(row.timeline) << row.experiment.name;
    EXPECT_EQ(row.timeline->ranks.size(), 4u);
    // 8 forwards, 7 recomputes and 8 backwards.
    EXPECT_EQ(row.timeline->ranks[0].size(), 23u);
    EXPECT_EQ(row.durations.at(0).wall_seconds, row.timeline->makespan);
    EXPECT_EQ(row.samples, 32);
    EXPECT_EQ(row.experiment.balance, benchmark_.small.experiments[0].balance);
  }
}

// Layers take almost no time, and each copy takes one second.
TEST_F(SimulateRows, WithoutStreamsCopiesStopBothOfTheirEnds) {
  options_.simulate.device_speed = 1e12;
  options_.simulate.latency = 1;
  options_.simulate.bandwidth = 0;
  simulate();
  // Three links, in forward and in backward.
  EXPECT_NEAR(seconds("all on"), 6, 1e-6);
  // 8 micro-batches in 4 stages of 1, 2, 2 and 1 s, in forward and in backward.
  EXPECT_NEAR(seconds("no copy streams"), 2 * (6 + 7 * 2), 1e-6);
  EXPECT_THAT(notes_, Contains(HasSubstr("1e+12 times as fast")));
  EXPECT_THAT(notes_, Contains("Links: 1e+06 us and no limit to their "
                               "bandwidth."));
}

TEST_F(SimulateRows, RelayedSkipsAreHeldInMorePartitions) {
  simulate();
  const auto& direct = row("all on").timeline->peak_bytes;
  const auto& relayed = row("no direct skips").timeline->peak_bytes;
  ASSERT_EQ(relayed.size(), 4u);
  // Skip tensors bypass the second and the third partition.
  EXPECT_EQ(relayed[0], direct[0]);
  EXPECT_GT(relayed[1], direct[1]);
  EXPECT_GT(relayed[2], direct[2]);
}

TEST_F(SimulateRows, TheSeedDrawsTheOrders) {
  simulate();
  const auto first = actions("no ordered backward");
  const auto ordered = actions("all on");
  simulate();
  EXPECT_EQ(actions("no ordered backward"), first);
  options_.settings.seed = 1;
  simulate();
  EXPECT_NE(actions("no ordered backward"), first);
  EXPECT_EQ(actions("all on"), ordered);
  EXPECT_THAT(notes_, Contains(HasSubstr("the seed 1.")));
}

}  // namespace
}  // namespace gpipe::benchmarks
