#include "gpipe/simulation/critical_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/schedule/generators/fill_drain.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/simulation/simulate.h"
#include "gpipe/simulation/timeline_testing.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

std::vector<std::string> steps(const Timeline& timeline) {
  std::vector<std::string> result;
  for (const CriticalStep& step : critical_path(timeline)) {
    std::ostringstream text;
    text << to_string(step.action);
    if (step.is_transfer()) text << " " << step.from << ">" << step.to;
    text << " " << step.start << "-" << step.end;
    result.push_back(text.str());
  }
  return result;
}

TEST(CriticalPathTest, GoesThroughTheSlowestStage) {
  Costs costs = equal_costs(3, 1, 1);
  costs.forward[1] = costs.backward[1] = 5;
  EXPECT_THAT(steps(simulate(fill_drain(3, 2), costs)),
              ElementsAre("0F0 0-1", "1F0 1-6", "1F1 6-11", "2F1 11-12",
                          "2B1 12-13", "1B1 13-18", "1B0 18-23", "0B0 23-24"));
}

// If two actions end at the same time, the path takes the one on the same rank.
TEST(CriticalPathTest, StaysOnARankIfItCan) {
  EXPECT_THAT(steps(simulate(fill_drain(2, 2), equal_costs(2, 1, 2))),
              ElementsAre("0F0 0-1", "1F0 1-2", "1F1 2-3", "1B1 3-5", "0B1 5-7",
                          "0B0 7-9"));
}

TEST(CriticalPathTest, GoesThroughCopiesThatWaitForTheirLink) {
  Costs costs = equal_costs(2, 1, 1);
  costs.latency = 0.5;
  costs.bandwidth = 5;
  costs.boundary_bytes = {10};
  EXPECT_THAT(steps(simulate(fill_drain(2, 2), costs)),
              ElementsAre("0F0 0-1", "0F0 0>1 1-3", "0F1 0>1 3-5.5",
                          "1F1 5.5-6.5", "1B1 6.5-7.5", "1B1 1>0 7.5-9.5",
                          "1B0 1>0 9.5-12", "0B0 12-13"));
}

TEST(CriticalPathTest, ALateRecomputeIsBetweenTheGradientAndItsBackward) {
  Schedule schedule =
      with_recompute(fill_drain(2, 1), [](int) { return true; });
  schedule.ranks[0][1].fused_with_next = true;
  EXPECT_THAT(steps(simulate(schedule, equal_costs(2, 1, 2))),
              ElementsAre("0F0 0-1", "1F0 1-2", "1R0 2-3", "1B0 3-5", "0R0 5-6",
                          "0B0 6-8"));
}

// 1F1 waits for the whole block of 0F1, and the block waits for 1B0.
TEST(CriticalPathTest, EnteringAPairByItsOtherAction) {
  const Schedule schedule = {
      {{{0, ActionKind::kForward, 0},
        {0, ActionKind::kForward, 1, /*fused_with_next=*/true},
        {0, ActionKind::kBackward, 0},
        {0, ActionKind::kBackward, 1}},
       {{1, ActionKind::kForward, 0},
        {1, ActionKind::kBackward, 0},
        {1, ActionKind::kForward, 1},
        {1, ActionKind::kBackward, 1}}}};
  EXPECT_THAT(steps(simulate(schedule, equal_costs(2, 1, 2))),
              ElementsAre("0F0 0-1", "1F0 1-2", "1B0 2-4", "0F1 4-7", "1F1 7-8",
                          "1B1 8-10", "0B1 10-12"));
}

TEST(CriticalPathTest, AMeasuredOneMayHaveGaps) {
  const Timeline measured =
      timeline_of({{{{0, ActionKind::kForward, 0}, 0.5, 1},
                    {{0, ActionKind::kForward, 1}, 1.5, 2}},
                   {{{1, ActionKind::kForward, 0}, 1.25, 1.75},
                    {{1, ActionKind::kForward, 1}, 2.5, 3}}});
  EXPECT_THAT(steps(measured),
              ElementsAre("0F0 0.5-1", "0F1 1.5-2", "1F1 2.5-3"));
}

// Returns a timeline in which the output of 0F0 is copied to stage 1, and as a
// skip tensor to stage 2. The skip tensor arrives at `skip`. 2F0 begins at
// `last`.
Timeline with_skip(double skip, double last) {
  Timeline timeline =
      timeline_of({{{{0, ActionKind::kForward, 0}, 0, 1}},
                   {{{1, ActionKind::kForward, 0}, 1.2, 2.2}},
                   {{{2, ActionKind::kForward, 0}, last, last + 1}}});
  timeline.transfers = {{{0, ActionKind::kForward, 0}, 0, 1, 1, 1.2, 1.2},
                        {{0, ActionKind::kForward, 0}, 0, 2, 1, skip, skip},
                        {{1, ActionKind::kForward, 0}, 1, 2, 2.2, 2.4, 2.4}};
  return timeline;
}

TEST(CriticalPathTest, OfSeveralCopiesOfAnActionItIsTheOneToTheRankThatWaited) {
  EXPECT_THAT(steps(with_skip(2, 2.4)),
              ElementsAre("0F0 0-1", "0F0 0>1 1-1.2", "1F0 1.2-2.2",
                          "1F0 1>2 2.2-2.4", "2F0 2.4-3.4"));
}

TEST(CriticalPathTest, ASkipTensorThatComesLastIsWhatIsWaitedFor) {
  EXPECT_THAT(steps(with_skip(3, 3)),
              ElementsAre("0F0 0-1", "0F0 0>2 1-3", "2F0 3-4"));
}

TEST(CriticalPathTest, ASkipTensorsGradientMayBeWhatIsWaitedFor) {
  Timeline timeline =
      timeline_of({{{{0, ActionKind::kBackwardInput, 0}, 3, 4}},
                   {{{1, ActionKind::kBackwardInput, 0}, 1.5, 2}},
                   {{{2, ActionKind::kBackwardInput, 0}, 0, 1}}});
  timeline.transfers = {
      {{2, ActionKind::kBackwardInput, 0}, 2, 1, 1, 1.5, 1.5},
      {{2, ActionKind::kBackwardInput, 0}, 2, 0, 1, 3, 3},
      {{1, ActionKind::kBackwardInput, 0}, 1, 0, 2, 2.5, 2.5}};
  EXPECT_THAT(steps(timeline),
              ElementsAre("2I0 0-1", "2I0 2>0 1-3", "0I0 3-4"));
}

// Stages 1 and 3 are on one rank. The second copy of 0F0 is for stage 3.
TEST(CriticalPathTest, NothingWaitsForACopyThatComesLater) {
  Timeline timeline = timeline_of({{{{0, ActionKind::kForward, 0}, 0, 1},
                                    {{2, ActionKind::kForward, 0}, 3.5, 6.5}},
                                   {{{1, ActionKind::kForward, 0}, 2, 3},
                                    {{3, ActionKind::kForward, 0}, 7, 8}}});
  timeline.transfers = {{{0, ActionKind::kForward, 0}, 0, 1, 1, 2, 2},
                        {{0, ActionKind::kForward, 0}, 0, 1, 2, 6, 6},
                        {{1, ActionKind::kForward, 0}, 1, 0, 3, 3.5, 3.5},
                        {{2, ActionKind::kForward, 0}, 0, 1, 6.5, 7, 7}};
  EXPECT_THAT(steps(timeline),
              ElementsAre("0F0 0-1", "0F0 0>1 1-2", "1F0 2-3", "1F0 1>0 3-3.5",
                          "2F0 3.5-6.5", "2F0 0>1 6.5-7", "3F0 7-8"));
}

// The timeline of rank 1 of three. The copy of a gradient names a whole
// backward, since the process does not know the actions of other ranks.
TEST(CriticalPathTest, OfOneProcessBeginsWithWhatCameFromAnother) {
  Timeline timeline =
      timeline_of({{{{1, ActionKind::kForward, 0}, 3.5, 4},
                    {{1, ActionKind::kForward, 1}, 4, 5},
                    {{1, ActionKind::kBackwardInput, 0}, 7, 8}}});
  timeline.first_rank = 1;
  timeline.transfers = {{{0, ActionKind::kForward, 0}, 0, 1, 2, 3, 3},
                        {{0, ActionKind::kForward, 1}, 0, 1, 3, 3.5, 3.5},
                        {{1, ActionKind::kForward, 0}, 1, 2, 4, 4.5, 4.5},
                        {{2, ActionKind::kBackward, 0}, 2, 1, 6, 7, 7},
                        {{1, ActionKind::kBackwardInput, 0}, 1, 0, 8, 9, 9}};
  EXPECT_THAT(steps(timeline), ElementsAre("2B0 2>1 6-7", "1I0 7-8"));
  const auto path = critical_path(timeline);
  EXPECT_EQ(path[1].from, 1);
  EXPECT_EQ(path[1].to, 1);

  timeline.ranks[0].pop_back();
  EXPECT_THAT(steps(timeline),
              ElementsAre("0F0 0>1 2-3", "1F0 3.5-4", "1F1 4-5"));
}

TEST(CriticalPathTest, NothingHasNone) {
  EXPECT_THAT(critical_path(timeline_of({{}, {}})), IsEmpty());
}

TEST(CriticalPathTest, RefusesATimelineThatCannotBe) {
  const Timeline wrong = timeline_of({{{{0, ActionKind::kBackward, 0}, 0, 1},
                                       {{0, ActionKind::kForward, 0}, 1, 2}}});
  EXPECT_THAT([&] { critical_path(wrong); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("for itself")));
}

}  // namespace
}  // namespace gpipe
