#include "gpipe/simulation/bottlenecks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <string>

#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/named.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/text.h"
#include "gpipe/simulation/simulate.h"
#include "gpipe/simulation/timeline_testing.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

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
  const Schedule schedule = parse_schedule("0F0,(0R0;0B0)\n1F0,1R0,1B0\n");
  EXPECT_THAT(steps(simulate(schedule, equal_costs(2, 1, 2))),
              ElementsAre("0F0 0-1", "1F0 1-2", "1R0 2-3", "1B0 3-5", "0R0 5-6",
                          "0B0 6-8"));
}

// 1F1 waits for the whole block of 0F1, and the block waits for 1B0.
TEST(CriticalPathTest, EnteringAPairByItsOtherAction) {
  const Schedule schedule = schedule_with_a_pair(2);
  EXPECT_THAT(steps(simulate(schedule, equal_costs(2, 1, 2))),
              ElementsAre("0F0 0-1", "1F0 1-2", "1B0 2-4", "0F1 4-7", "1F1 7-8",
                          "1B1 8-10", "0B1 10-12"));
}

TEST(CriticalPathTest, HasBothActionsOfAPairWithSpansOfTheirOwn) {
  Action first = act("0F1");
  first.fused_with_next = true;
  EXPECT_THAT(steps(timeline_of({{{act("0F0"), 0, 1},
                                  {first, 1, 2},
                                  {act("0B0"), 2, 4},
                                  {act("0B1"), 4, 6}}})),
              ElementsAre("0F0 0-1", "0F1 1-2", "0B0 2-4", "0B1 4-6"));
}

TEST(CriticalPathTest, AMeasuredOneMayHaveGaps) {
  const Timeline measured =
      timeline_of({{{act("0F0"), 0.5, 1}, {act("0F1"), 1.5, 2}},
                   {{act("1F0"), 1.25, 1.75}, {act("1F1"), 2.5, 3}}});
  EXPECT_THAT(steps(measured),
              ElementsAre("0F0 0.5-1", "0F1 1.5-2", "1F1 2.5-3"));
}

// Returns a timeline in which the output of 0F0 is copied to stage 1, and as a
// skip tensor to stage 2. The skip tensor arrives at `skip`. 2F0 begins at
// `last`.
Timeline with_skip(double skip, double last) {
  Timeline timeline = timeline_of({{{act("0F0"), 0, 1}},
                                   {{act("1F0"), 1.2, 2.2}},
                                   {{act("2F0"), last, last + 1}}});
  timeline.transfers = {{act("0F0"), 0, 1, 1, 1.2, 1.2},
                        {act("0F0"), 0, 2, 1, skip, skip},
                        {act("1F0"), 1, 2, 2.2, 2.4, 2.4}};
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
  Timeline timeline = timeline_of(
      {{{act("0I0"), 3, 4}}, {{act("1I0"), 1.5, 2}}, {{act("2I0"), 0, 1}}});
  timeline.transfers = {{act("2I0"), 2, 1, 1, 1.5, 1.5},
                        {act("2I0"), 2, 0, 1, 3, 3},
                        {act("1I0"), 1, 0, 2, 2.5, 2.5}};
  EXPECT_THAT(steps(timeline),
              ElementsAre("2I0 0-1", "2I0 2>0 1-3", "0I0 3-4"));
}

// Stages 1 and 3 are on one rank. The second copy of 0F0 is for stage 3.
TEST(CriticalPathTest, NothingWaitsForACopyThatComesLater) {
  Timeline timeline = timeline_of({{{act("0F0"), 0, 1}, {act("2F0"), 3.5, 6.5}},
                                   {{act("1F0"), 2, 3}, {act("3F0"), 7, 8}}});
  timeline.transfers = {{act("0F0"), 0, 1, 1, 2, 2},
                        {act("0F0"), 0, 1, 2, 6, 6},
                        {act("1F0"), 1, 0, 3, 3.5, 3.5},
                        {act("2F0"), 0, 1, 6.5, 7, 7}};
  EXPECT_THAT(steps(timeline),
              ElementsAre("0F0 0-1", "0F0 0>1 1-2", "1F0 2-3", "1F0 1>0 3-3.5",
                          "2F0 3.5-6.5", "2F0 0>1 6.5-7", "3F0 7-8"));
}

// The timeline of rank 1 of three. The copy of a gradient names a whole
// backward, since the process does not know the actions of other ranks.
TEST(CriticalPathTest, OfOneProcessBeginsWithWhatCameFromAnother) {
  Timeline timeline = timeline_of(
      {{{act("1F0"), 3.5, 4}, {act("1F1"), 4, 5}, {act("1I0"), 7, 8}}});
  timeline.first_rank = 1;
  timeline.transfers = {{act("0F0"), 0, 1, 2, 3, 3},
                        {act("0F1"), 0, 1, 3, 3.5, 3.5},
                        {act("1F0"), 1, 2, 4, 4.5, 4.5},
                        {act("2B0"), 2, 1, 6, 7, 7},
                        {act("1I0"), 1, 0, 8, 9, 9}};
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
  const Timeline wrong =
      timeline_of({{{act("0B0"), 0, 1}, {act("0F0"), 1, 2}}});
  EXPECT_THAT([&] { critical_path(wrong); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("for itself")));
}

void expect_parts(const IdleParts& parts, double schedule, double imbalance,
                  double transfer, double overhead) {
  EXPECT_DOUBLE_EQ(parts.schedule, schedule);
  EXPECT_DOUBLE_EQ(parts.imbalance, imbalance);
  EXPECT_DOUBLE_EQ(parts.transfer, transfer);
  EXPECT_DOUBLE_EQ(parts.overhead, overhead);
}

// Each of p ranks waits for (p - 1)(f + b).
TEST(Idle, OfEqualStagesIsTheSchedules) {
  for (const IdleParts& each :
       idle_parts(simulate(fill_drain(4, 5), equal_costs(4, 1, 2)))) {
    expect_parts(each, 9, 0, 0, 0);
  }
}

// F and B take 1, 5 and 1 s on the three stages, so two micro-batches take 24
// s. With 7/3 s on every stage the makespan would be (2 + 3 - 1) * 14/3, of
// which each rank works for 2 * 14/3.
TEST(Idle, BeyondThatIsImbalance) {
  Costs costs = equal_costs(3, 1, 1);
  costs.forward[1] = costs.backward[1] = 5;
  const auto parts = idle_parts(simulate(fill_drain(3, 2), costs));
  const double equal = 2 * 14.0 / 3;
  expect_parts(parts[0], equal, 20 - equal, 0, 0);
  expect_parts(parts[1], 4, 0, 0, 0);
  expect_parts(parts[2], equal, 20 - equal, 0, 0);
}

// The times are 0F0 0-1, a copy, 1F0 1.5-2.5, 1B0 2.5-3.5, a copy, 0B0 4-5.
// Rank 0 also waits for the first copy, since it waits for rank 1, which waits
// for that copy. In the same way rank 1 waits for the second copy.
TEST(Idle, WaitsForCopiesAreThoseOfOtherRanksToo) {
  Costs costs = equal_costs(2, 1, 1);
  costs.latency = 0.5;
  for (const IdleParts& each : idle_parts(simulate(fill_drain(2, 1), costs))) {
    expect_parts(each, 2, 0, 1, 0);
  }
}

// Rank 0 could begin its second forward at 1, and rank 1 its first forward at
// 1.
TEST(Idle, WhereNothingWasMissingIsOverhead) {
  const auto timeline =
      timeline_of({{{act("0F0"), 0, 1}, {act("0F1"), 1.25, 2.25}},
                   {{act("1F0"), 1.5, 2.5}, {act("1F1"), 2.5, 3.5}}});
  const auto parts = idle_parts(timeline);
  // After its last forward rank 0 waits for the end.
  expect_parts(parts[0], 1, 0.25, 0, 0.25);
  expect_parts(parts[1], 1, 0, 0, 0.5);
}

// Rank 0 recomputes only when the gradient has arrived.
TEST(Idle, ALateRecomputeWaitsForTheGradient) {
  Costs costs = equal_costs(2, 1, 1);
  const Schedule schedule = parse_schedule("0F0,(0R0;0B0)\n1F0,1B0\n");
  const Timeline timeline = simulate(schedule, costs);
  ASSERT_EQ(timeline.makespan, 5);
  const auto parts = idle_parts(timeline);
  expect_parts(parts[0], 2, 0, 0, 0);
  expect_parts(parts[1], 3, 0, 0, 0);
}

// The parts add up to the idle time, for all schedules and random costs.
TEST(Idle, PartsAddUp) {
  std::mt19937 random(1);
  const auto seconds = [&] { return 0.1 + (random() % 1000) / 1000.0; };
  for (const std::string& name : schedule_names()) {
    for (int round = 0; round < 5; ++round) {
      const Schedule schedule =
          named_schedule(name, 4, 8, fixed_stages_per_rank(name).value_or(2));
      const int stages = num_stages(schedule);
      Costs costs = equal_costs(stages, 1, 2);
      for (auto* list : {&costs.forward, &costs.backward, &costs.backward_input,
                         &costs.backward_weight, &costs.recompute}) {
        for (double& each : *list) each = seconds();
      }
      costs.latency = round % 2 == 0 ? 0 : seconds() / 5;
      const Timeline timeline = simulate(schedule, costs);
      const auto parts = idle_parts(timeline);
      for (std::size_t r = 0; r < parts.size(); ++r) {
        EXPECT_NEAR(parts[r].total(), timeline.idle[r],
                    1e-9 * timeline.makespan)
            << name << ", rank " << r;
        for (const double part : {parts[r].schedule, parts[r].imbalance,
                                  parts[r].transfer, parts[r].overhead}) {
          EXPECT_GE(part, 0) << name << ", rank " << r;
        }
        EXPECT_LT(parts[r].overhead, 1e-9 * timeline.makespan) << name;
        if (costs.latency == 0) {
          EXPECT_EQ(parts[r].transfer, 0) << name;
        }
      }
    }
  }
}

// F takes 1 s on rank 0 and 3 s on rank 1. With equal stages of 2 s, rank 1
// would wait for 2 s at the beginning, and rank 0 for 2 s at the end.
TEST(Idle, SpansSayWhenEachCauseWas) {
  Costs costs = equal_costs(2, 1, 1);
  costs.forward[1] = 3;
  costs.latency = 0.25;
  const Timeline timeline = simulate(forward_only(2, 1), costs);
  const auto spans = idle_spans(timeline);
  ASSERT_EQ(timeline.makespan, 4.25);
  ASSERT_EQ(spans.size(), 2);
  ASSERT_EQ(spans[0].size(), 3);
  const auto expect = [](const IdleSpan& span, double start, double end,
                         IdleCause cause) {
    EXPECT_DOUBLE_EQ(span.start, start);
    EXPECT_DOUBLE_EQ(span.end, end);
    EXPECT_STREQ(to_string(span.cause), to_string(cause));
  };
  // Rank 0 waits for rank 1, which waits for the copy.
  expect(spans[0][0], 1, 1.25, IdleCause::kTransfer);
  expect(spans[0][1], 1.25, 3.25, IdleCause::kSchedule);
  expect(spans[0][2], 3.25, 4.25, IdleCause::kImbalance);
  ASSERT_EQ(spans[1].size(), 2);
  expect(spans[1][0], 0, 1, IdleCause::kSchedule);
  expect(spans[1][1], 1, 1.25, IdleCause::kTransfer);
}

// Rank 0 waits for 4 s before each of its two forwards of stage 2. With equal
// stages it would wait for 2 s there.
TEST(Idle, TheSchedulesWaitingIsWhereTheScheduleWaits) {
  const Schedule schedule = parse_schedule("0F0,2F0,0F1,2F1\n1F0,1F1\n");
  Costs costs = equal_costs(3, 1, 1);
  costs.forward = {1, 4, 1};
  // The times are 0F0 0-1, 1F0 1-5, 2F0 5-6, 0F1 6-7, 1F1 7-11, 2F1 11-12. With
  // equal stages each action takes 2, in the same order.
  const auto spans = idle_spans(simulate(schedule, costs));
  ASSERT_EQ(spans[0].size(), 4);
  for (const std::size_t k : {0, 2}) {
    EXPECT_EQ(spans[0][k].cause, IdleCause::kSchedule);
    EXPECT_DOUBLE_EQ(spans[0][k].end - spans[0][k].start, 2);
    EXPECT_EQ(spans[0][k + 1].cause, IdleCause::kImbalance);
    EXPECT_DOUBLE_EQ(spans[0][k + 1].end - spans[0][k + 1].start, 2);
  }
}

// The two actions of a measured pair have a span each. The time between them is
// idle.
TEST(Idle, OfAMeasuredPairAddsUp) {
  const Timeline timeline = timeline_of({{{act("0F0"), 0, 1},
                                          {paired(act("0F1")), 1, 2},
                                          {act("0B0"), 2.5, 3},
                                          {act("0B1"), 3, 4}}});
  ASSERT_EQ(timeline.idle[0], 0.5);
  expect_parts(idle_parts(timeline)[0], 0, 0, 0, 0.5);
}

// The timeline of a process that knows only its own rank. The copies from other
// ranks show for what it waited.
TEST(Idle, OfOneProcessIsRemoteUntilSomethingComes) {
  Timeline timeline = timeline_of({{{act("1F0"), 3.5, 4}, {act("1B0"), 7, 8}}});
  timeline.first_rank = 1;
  timeline.transfers = {{act("0F0"), 0, 1, 2, 3, 3, 64},
                        {act("1F0"), 1, 2, 4, 4.5, 4.5, 64},
                        {act("2B0"), 2, 1, 6, 7, 7, 64},
                        {act("1B0"), 1, 0, 8, 9, 9, 64}};
  const IdleParts parts = idle_parts(timeline)[0];
  expect_parts(parts, 0, 0, 2, 0.5);
  EXPECT_DOUBLE_EQ(parts.remote, 4);
  const std::string text = to_text({parts}, 1);
  EXPECT_THAT(text, HasSubstr("overhead         remote ranks        \n"));
  EXPECT_THAT(text,
              HasSubstr("rank 1  6.5 s            0 us  0.0 %       0 us  "
                        "0.0 %       2 s  30.8 %    500 ms  7.7 %         "
                        "  4 s  61.5 %\n"));
}

TEST(Idle, IsRefusedWhereActionsWaitForEachOther) {
  // 0F0 runs last, although all other actions depend on it.
  const auto timeline = timeline_of({{{act("0B0"), 3, 4}, {act("0F0"), 5, 6}},
                                     {{act("1F0"), 3, 4}, {act("1B0"), 5, 6}}});
  EXPECT_THAT([&] { idle_parts(timeline); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("0B0")));
}

// The error comes before a list of so many stages takes 16 GB.
TEST(Idle, IsRefusedForStagesFarBeyondTheNumberOfActions) {
  const auto timeline = timeline_of({{{act("2000000000F0"), 0, 1}}});
  EXPECT_THAT([&] { idle_spans(timeline); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("1 actions has a stage 2000000000")));
}

TEST(Idle, IsATable) {
  Costs costs = equal_costs(2, 1, 1);
  costs.latency = 0.5;
  const std::string of_a_rank =
      "             2 s  66.7 %       0 us  0.0 %       1 s  33.3 %      0 us  "
      "0.0 %\n";
  EXPECT_EQ(
      to_text(idle_parts(simulate(fill_drain(2, 1), costs))),
      "          idle  warm-up, drain          imbalance         transfer  "
      "        overhead       \n"
      "  rank 0   3 s" +
          of_a_rank + "  rank 1   3 s" + of_a_rank +
          "  all      6 s             4 s  66.7 %       0 us  0.0 %       "
          "2 s  33.3 %      0 us  0.0 %\n");
}

}  // namespace
}  // namespace gpipe
