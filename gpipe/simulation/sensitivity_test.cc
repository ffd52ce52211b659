#include "gpipe/simulation/sensitivity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <stdexcept>

#include "gpipe/schedule/fill_drain.h"
#include "gpipe/schedule/one_forward_one_backward.h"
#include "gpipe/simulation/timeline_testing.h"

namespace gpipe {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

// Fill-drain is a flow shop: of p equal stages, a straggler of factor x on any
// rank makes m + p - 1 units to m x + p - 1.
TEST(SensitivityTest, AStragglerGivesTheClosedFormOfFillDrain) {
  SensitivityOptions options;
  options.stragglers = {1, 1.5, 3};
  const Sensitivity result =
      sensitivity(fill_drain(4, 8), costs_of(4), options);
  ASSERT_THAT(result.stragglers, SizeIs(3));
  for (std::size_t k = 0; k < 3; ++k) {
    const double x = options.stragglers[k];
    EXPECT_DOUBLE_EQ(result.stragglers[k].mean, (8 * x + 3) / 11);
    EXPECT_DOUBLE_EQ(result.stragglers[k].worst, (8 * x + 3) / 11);
  }
}

TEST(SensitivityTest, NothingIsSlowerWithoutDisturbances) {
  SensitivityOptions options;
  options.stragglers = {1};
  options.jitters = {0};
  options.outages = {0};
  const Sensitivity result =
      sensitivity(one_forward_one_backward(4, 8), costs_of(4), options);
  EXPECT_EQ(result.stragglers.at(0).worst, 1);
  EXPECT_EQ(result.jitters.at(0).worst, 1);
  EXPECT_EQ(result.outages.at(0).worst, 1);
}

// With unlimited bandwidth a link that is down for d seconds delays a step by
// at most d.
TEST(SensitivityTest, AnOutageCostsAtMostItsLength) {
  SensitivityOptions options;
  options.outages = {0.1, 0.5};
  const Sensitivity result =
      sensitivity(one_forward_one_backward(4, 8), costs_of(4), options);
  EXPECT_GT(result.outages[0].worst, 1);
  EXPECT_LE(result.outages[0].worst, 1.1 + 1e-12);
  EXPECT_LE(result.outages[1].worst, 1.5 + 1e-12);
  EXPECT_LE(result.outages[0].mean, result.outages[0].worst);
}

TEST(SensitivityTest, OneRankHasNoLinks) {
  const Sensitivity result = sensitivity(fill_drain(1, 4), costs_of(1));
  ASSERT_THAT(result.outages, SizeIs(4));
  EXPECT_EQ(result.outages[3].mean, 1);
  EXPECT_EQ(result.stragglers.back().mean, 2);
}

TEST(SensitivityTest, WrongOptionsAreRefused) {
  SensitivityOptions options;
  options.seeds = 0;
  EXPECT_THAT([&] { sensitivity(fill_drain(2, 2), costs_of(2), options); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("seeds is 0")));
  options.seeds = 1;
  options.stragglers = {0};
  EXPECT_THAT([&] { sensitivity(fill_drain(2, 2), costs_of(2), options); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("rank 0 is 0")));
  EXPECT_THAT([&] { sensitivity(fill_drain(2, 2), equal_costs(2, 0, 0)); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("takes no time")));
}

}  // namespace
}  // namespace gpipe
