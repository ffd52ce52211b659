#include "benchmarks/unet_timeline/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "gpipe/meta.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;

int count_of_off(const Mechanisms& on) {
  return !on.direct_skips + !on.copy_streams + !on.early_recompute +
         !on.ordered_backward;
}

// Returns the number of mechanisms that are off in each row.
std::vector<int> counts_of_off(const std::vector<Experiment>& rows) {
  std::vector<int> counts;
  for (const Experiment& row : rows) {
    counts.push_back(count_of_off(mechanisms_of(row)));
  }
  return counts;
}

TEST(TimelineBenchmark, AllOnIsTheBaseAndEachMechanismIsOffByItself) {
  const Benchmark benchmark = timeline_benchmark();
  const auto& rows = benchmark.paper.experiments;
  EXPECT_EQ(rows.front().name, benchmark.base);
  EXPECT_THAT(counts_of_off(rows), ElementsAre(0, 1, 1, 1, 1, 2, 3, 4));
  EXPECT_FALSE(mechanisms_of(rows.at(1)).direct_skips);
  EXPECT_FALSE(mechanisms_of(rows.at(2)).copy_streams);
  EXPECT_FALSE(mechanisms_of(rows.at(3)).early_recompute);
  EXPECT_FALSE(mechanisms_of(rows.at(4)).ordered_backward);
}

TEST(TimelineBenchmark, TorchgpipesRowsAlwaysRecomputeEarly) {
  for (const Experiment& row : timeline_benchmark().paper.experiments) {
    EXPECT_TRUE(!row.published.at(0) || mechanisms_of(row).early_recompute)
        << row.name;
  }
}

TEST(TimelineBenchmark, BalancesAreOfTheWholeModelAtBothSizes) {
  const Benchmark benchmark = timeline_benchmark();
  for (const Workload* workload : {&benchmark.paper, &benchmark.small}) {
    const MetaGuard meta;
    const auto layers = static_cast<int64_t>(
        benchmark.model(workload->experiments.front())->size());
    for (const Experiment& row : workload->experiments) {
      EXPECT_EQ(
          std::accumulate(row.balance.begin(), row.balance.end(), int64_t{0}),
          layers);
      EXPECT_EQ(row.balance.size(), 4u);
    }
  }
}

// torchgpipe has 30.662 samples/s and 52.2 GiB without dependency, streams and
// portals. That is 52 % of its 58.477 samples/s with all of them.
TEST(TimelineBenchmark, PublishedFiguresAreSpeedRatioAndBytes) {
  const Experiment row = timeline_benchmark().paper.experiments.at(6);
  ASSERT_EQ(row.name, "nor order");
  EXPECT_DOUBLE_EQ(row.published.at(0).value(), 30.662);
  EXPECT_DOUBLE_EQ(row.published.at(1).value(), 30.662 / 58.477);
  EXPECT_DOUBLE_EQ(row.published.at(2).value(), 52.2 * 1073741824);
}

TEST(TimelineBenchmark, TheYardstickIsTheModelOfTheRowsWithoutPipeline) {
  const Experiment plain = timeline_yardstick();
  EXPECT_EQ(plain.partitions, 0);
  EXPECT_EQ(plain.size, timeline_benchmark().paper.experiments.front().size);
}

TEST(TimelineBenchmark, NoOtherRowHasMechanisms) {
  Experiment row;
  row.name = "checkpoint-only";
  EXPECT_THROW(mechanisms_of(row), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::benchmarks
