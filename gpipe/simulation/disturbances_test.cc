#include "gpipe/simulation/disturbances.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gpipe/schedule/fill_drain.h"
#include "gpipe/schedule/forward_only.h"
#include "gpipe/simulation/simulate.h"
#include "gpipe/simulation/timeline_testing.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double makespan(const Schedule& schedule, const Disturbances& disturbances) {
  const auto stages = static_cast<int>(schedule.ranks.size());
  return simulate(schedule, costs_of(stages), disturbances).makespan;
}

// Two stages of 1 s, and a copy of 2 s from the first to the second, for one
// micro-batch: it is copied from 1 to 3 s if there is no outage.
Timeline with_outages(std::vector<Outage> outages, int microbatches = 1) {
  Costs costs = costs_of(2);
  costs.bandwidth = 1;
  costs.boundary_bytes = {2, 0};
  Disturbances disturbances;
  disturbances.outages = std::move(outages);
  return simulate(forward_only(2, microbatches), costs, disturbances);
}

// A flow shop of p stages takes the sum over the stages plus (m - 1) times the
// slowest one.
TEST(DisturbancesTest, AStragglerGivesTheClosedFormOfUnequalStages) {
  Disturbances disturbances;
  disturbances.rank_factors = {1, 1, 1.5, 1};
  EXPECT_EQ(makespan(fill_drain(4, 8), disturbances), 3 * 4.5 + 7 * 4.5);
  EXPECT_EQ(makespan(fill_drain(4, 8), {}), 4 * 3 + 7 * 3);
}

TEST(DisturbancesTest, AFactorForAllRanksScalesTheStep) {
  Disturbances disturbances;
  disturbances.rank_factors = {2, 2, 2};
  EXPECT_EQ(makespan(fill_drain(3, 5), disturbances),
            2 * makespan(fill_drain(3, 5), {}));
}

TEST(DisturbancesTest, JitterHasTheMeanAndDeviationThatItSays) {
  Disturbances disturbances;
  disturbances.jitter = 0.3;
  constexpr int kCount = 100'000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double factor = internal::jitter_factor(
        disturbances, {i % 8, ActionKind::kForward, i / 8});
    EXPECT_GT(factor, 0);
    sum += factor;
    squares += factor * factor;
  }
  const double mean = sum / kCount;
  // The standard errors are 0.001 and about 0.0012.
  EXPECT_NEAR(mean, 1, 0.005);
  EXPECT_NEAR(std::sqrt(squares / kCount - mean * mean), 0.3, 0.006);
}

TEST(DisturbancesTest, JitterDependsOnTheSeedAndTheActionAlone) {
  Disturbances first, second;
  first.jitter = second.jitter = 0.1;
  second.seed = 1;
  const Action action{1, ActionKind::kForward, 2};
  const double factor = internal::jitter_factor(first, action);
  EXPECT_EQ(factor, internal::jitter_factor(first, action));
  EXPECT_NE(factor, internal::jitter_factor(second, action));
  EXPECT_NE(factor,
            internal::jitter_factor(first, {1, ActionKind::kForward, 3}));
  EXPECT_NE(factor,
            internal::jitter_factor(first, {2, ActionKind::kForward, 1}));
  EXPECT_NE(factor,
            internal::jitter_factor(first, {1, ActionKind::kBackward, 2}));
  EXPECT_EQ(makespan(fill_drain(3, 4), first),
            makespan(fill_drain(3, 4), first));
  EXPECT_NE(makespan(fill_drain(3, 4), first),
            makespan(fill_drain(3, 4), second));
}

TEST(DisturbancesTest, ACopyWaitsForTheEndOfAnOutage) {
  const Timeline timeline = with_outages({{0, 1, 0.5, 3.5}});
  EXPECT_EQ(timeline.transfers.at(0).start, 4);
  EXPECT_EQ(timeline.transfers.at(0).end, 6);
  EXPECT_EQ(timeline.makespan, 7);
}

TEST(DisturbancesTest, ACopyGoesOnAfterAnOutage) {
  const Timeline timeline = with_outages({{0, 1, 2, 3}});
  EXPECT_EQ(timeline.transfers.at(0).start, 1);
  EXPECT_EQ(timeline.transfers.at(0).end, 6);
}

TEST(DisturbancesTest, OutagesThatOverlapCountOnce) {
  EXPECT_EQ(with_outages({{0, 1, 2, 3}, {0, 1, 1.5, 2}}).makespan,
            with_outages({{0, 1, 1.5, 3.5}}).makespan);
  EXPECT_EQ(with_outages({{0, 1, 0, 2}, {0, 1, 1, 2}}).makespan,
            with_outages({{0, 1, 0, 3}}).makespan);
}

TEST(DisturbancesTest, CopiesOfALinkQueueUpBehindAnOutage) {
  const Timeline timeline = with_outages({{0, 1, 0, 10}}, 3);
  EXPECT_EQ(timeline.transfers.at(0).end, 12);
  EXPECT_EQ(timeline.transfers.at(1).end, 14);
  EXPECT_EQ(timeline.makespan, 17);
}

TEST(DisturbancesTest, AnOutageOfAnotherLinkOrLaterChangesNothing) {
  const double undisturbed = with_outages({}).makespan;
  EXPECT_EQ(undisturbed, 4);
  EXPECT_EQ(with_outages({{1, 0, 0, 10}}).makespan, undisturbed);
  EXPECT_EQ(with_outages({{0, 1, 3, 10}}).makespan, undisturbed);
}

TEST(DisturbancesTest, WrongNumbersAreRefused) {
  const auto refusal = [](const Disturbances& disturbances, const char* text) {
    EXPECT_THAT([&] { check_disturbances(disturbances, 2); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(text)));
  };
  Disturbances disturbances;
  disturbances.rank_factors = {1};
  refusal(disturbances, "there are 1 rank_factors for 2 ranks");
  disturbances.rank_factors = {1, 0};
  refusal(disturbances, "the factor of rank 1 is 0");
  disturbances.rank_factors = {1, kInfinity};
  refusal(disturbances, "the factor of rank 1 is inf");
  disturbances.rank_factors.clear();
  disturbances.jitter = -1;
  refusal(disturbances, "the jitter is -1");
  disturbances.jitter = 0;
  disturbances.outages = {{0, 2, 0, 1}};
  refusal(disturbances, "from rank 0 to rank 2, but there are 2 ranks");
  disturbances.outages = {{0, 1, -1, 1}};
  refusal(disturbances, "starts at -1 s");
}

}  // namespace
}  // namespace gpipe
