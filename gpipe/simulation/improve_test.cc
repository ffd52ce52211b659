#include "gpipe/simulation/improve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <vector>

#include "gpipe/schedule/fill_drain.h"
#include "gpipe/simulation/simulate.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Costs forward_costs(std::vector<double> seconds) {
  Costs costs;
  costs.forward = seconds;
  costs.backward = seconds;
  return costs;
}

void expect(const Improvement& improvement, int stage, int from, int to,
            double seconds) {
  EXPECT_EQ(improvement.stage, stage);
  EXPECT_EQ(improvement.from, from);
  EXPECT_EQ(improvement.to, to);
  EXPECT_DOUBLE_EQ(improvement.seconds, seconds);
}

// The makespan is 2 * (sum + (m - 1) max). A quarter of the 8 s of stage 1
// takes 2 s off both the sum and the maximum.
TEST(ImproveTest, TheSlowestStageComesFirst) {
  const auto result =
      improve_first(fill_drain(3, 5), forward_costs({4, 8, 4}), 0.25);
  ASSERT_EQ(result.size(), 3);
  expect(result[0], 1, -1, -1, 2 * 2 * 5);
  expect(result[1], 0, -1, -1, 2);
  expect(result[2], 2, -1, -1, 2);
}

// Half of stage 1's 8 s leaves stage 0, with 6 s, as the slowest stage.
TEST(ImproveTest, AGainEndsAtTheNextSlowestStage) {
  const auto result =
      improve_first(fill_drain(2, 5), forward_costs({6, 8}), 0.5);
  expect(result[0], 1, -1, -1, 2 * (4 + 4 * 2));
}

// The critical path is 0F0, 2 copies of 4 s, 1F1, 1B1, 2 copies of 4 s, 0B0, as
// in critical_path_test.
TEST(ImproveTest, LinksAreAmongThem) {
  Costs costs = forward_costs({1, 1});
  costs.latency = 1;
  costs.bandwidth = 2;
  costs.boundary_bytes = {8};
  const Schedule schedule = fill_drain(2, 2);
  EXPECT_EQ(simulate(schedule, costs).makespan, 4 + 2 * (8 + 1));
  const auto result = improve_first(schedule, costs, 0.5);
  ASSERT_EQ(result.size(), 4);
  expect(result[0], -1, 0, 1, 4.5);
  expect(result[1], -1, 1, 0, 4.5);
  expect(result[2], 0, -1, -1, 1);
  expect(result[3], 1, -1, -1, 1);
}

TEST(ImproveTest, LinksThatTakeNoTimeAreLeftOut) {
  EXPECT_EQ(improve_first(fill_drain(4, 2), forward_costs({1, 1, 1, 1})).size(),
            4);
}

TEST(ImproveTest, RefusesAPartThatIsNone) {
  for (const double part :
       {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(
        [&] { improve_first(fill_drain(1, 1), forward_costs({1}), part); },
        ThrowsMessage<std::invalid_argument>(HasSubstr("from 0 to 1")));
  }
}

}  // namespace
}  // namespace gpipe
