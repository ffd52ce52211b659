#include "gpipe/simulation/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/text.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/simulation/simulate.h"
#include "gpipe/simulation/timeline_testing.h"

namespace gpipe {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::ThrowsMessage;

TEST(MemoryTest, IsUnknownWithoutBytes) {
  const Timeline timeline = simulate(fill_drain(2, 2), costs_of(2));
  EXPECT_THAT(timeline.memory, IsEmpty());
  EXPECT_THAT(timeline.peak_bytes, IsEmpty());
}

TEST(MemoryTest, ActivationsAreHeldFromForwardToBackward) {
  Costs costs = costs_of(2);
  costs.resident_bytes = {1000, 2000};
  costs.activation_bytes = {10, 20};
  const Timeline timeline = simulate(fill_drain(2, 2), costs);
  // Rank 0: 0F0 0F1 . . . 0B1 0B0. Rank 1: . 1F0 1F1 1B1 1B0.
  EXPECT_THAT(
      pairs(timeline.memory[0]),
      ElementsAre(Pair(0, 1010), Pair(1, 1020), Pair(7, 1010), Pair(9, 1000)));
  EXPECT_THAT(pairs(timeline.memory[1]),
              ElementsAre(Pair(0, 2000), Pair(1, 2020), Pair(2, 2040),
                          Pair(5, 2020), Pair(7, 2000)));
  EXPECT_THAT(timeline.peak_bytes, ElementsAre(1020, 2040));
}

TEST(MemoryTest, ARecomputedCellHoldsItsInputUntilItIsRecomputed) {
  Costs costs = costs_of(1);
  costs.activation_bytes = {100};
  costs.input_bytes = {1};
  const auto schedule =
      with_recompute(fill_drain(1, 2), [](int i) { return i == 0; });
  // The order is 0F0 0F1 0B1 0R0 0B0.
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_THAT(pairs(timeline.memory[0]),
              ElementsAre(Pair(0, 1), Pair(1, 101), Pair(4, 101), Pair(7, 0)));
  EXPECT_THAT(timeline.peak_bytes, ElementsAre(101));
}

// With recompute a rank holds m inputs and the activations of one micro-batch,
// instead of the activations of m micro-batches.
TEST(MemoryTest, RecomputingLeavesInputsAndOneOfAll) {
  for (const int n : {1, 3}) {
    for (const int m : {1, 2, 7}) {
      Costs costs = costs_of(n);
      costs.activation_bytes.assign(n, 100);
      costs.input_bytes.assign(n, 1);
      EXPECT_THAT(simulate(fill_drain(n, m), costs).peak_bytes, Each(100 * m));
      const auto recomputing =
          with_recompute(fill_drain(n, m), [](int) { return true; });
      EXPECT_THAT(simulate(recomputing, costs).peak_bytes, Each(100 + m));
    }
  }
}

TEST(MemoryTest, ALateRecomputeTakesMemoryWhenTheGradientIsThere) {
  Costs costs = costs_of(2);
  costs.activation_bytes = {100, 100};
  costs.input_bytes = {1, 1};
  Schedule schedule =
      with_recompute(fill_drain(2, 1), [](int) { return true; });
  // Rank 0: 0F0 0R0 . . . 0B0. Rank 1: . 1F0 1R0 1B0.
  EXPECT_THAT(pairs(simulate(schedule, costs).memory[0]),
              ElementsAre(Pair(0, 1), Pair(1, 101), Pair(7, 0)));
  schedule.ranks[0][1].fused_with_next = true;
  EXPECT_THAT(pairs(simulate(schedule, costs).memory[0]),
              ElementsAre(Pair(0, 1), Pair(5, 101), Pair(8, 0)));
}

TEST(MemoryTest, InputBackwardLeavesWhatWeightBackwardNeeds) {
  const Schedule schedule = parse_schedule("0F0,0I0,0W0\n");
  Costs costs = costs_of(1);
  costs.activation_bytes = {10};
  EXPECT_THAT(pairs(simulate(schedule, costs).memory[0]),
              ElementsAre(Pair(0, 10), Pair(3, 0)));
  costs.weight_activation_bytes = {4};
  EXPECT_THAT(pairs(simulate(schedule, costs).memory[0]),
              ElementsAre(Pair(0, 10), Pair(2, 4), Pair(3, 0)));
  // The gradients for W may be larger than what it frees.
  costs.weight_activation_bytes = {14};
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_THAT(pairs(timeline.memory[0]),
              ElementsAre(Pair(0, 10), Pair(2, 14), Pair(3, 0)));
  EXPECT_THAT(timeline.peak_bytes, ElementsAre(14));
}

TEST(MemoryTest, WhatIsNotInTheScheduleCountsAsDone) {
  Costs costs = costs_of(1);
  costs.activation_bytes = {10};
  costs.input_bytes = {1};
  costs.weight_activation_bytes = {4};
  const auto memory = [&](const char* csv) {
    return pairs(simulate(parse_schedule(csv), costs).memory[0]);
  };
  EXPECT_THAT(memory("0F0\n"), ElementsAre(Pair(0, 10)));
  EXPECT_THAT(memory("0B0\n"), ElementsAre(Pair(0, 10), Pair(2, 0)));
  EXPECT_THAT(memory("0I0,0W0\n"),
              ElementsAre(Pair(0, 10), Pair(1, 4), Pair(2, 0)));
  EXPECT_THAT(memory("0W0\n"), ElementsAre(Pair(0, 4), Pair(1, 0)));
  EXPECT_THAT(memory("0R0,0I0,0W0\n"),
              ElementsAre(Pair(0, 11), Pair(2, 5), Pair(3, 0)));
}

// The forward of a pair takes memory before the backward of the pair frees any.
TEST(MemoryTest, AnOverlappedPairHoldsBoth) {
  const Schedule schedule = parse_schedule("0F0,(0B0;0F1)OVERLAP_F_B,0B1\n");
  Costs costs = costs_of(1);
  costs.overlap = 1;
  costs.activation_bytes = {10};
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_THAT(pairs(timeline.memory[0]),
              ElementsAre(Pair(0, 10), Pair(1, 20), Pair(3, 10), Pair(5, 0)));
  EXPECT_THAT(timeline.peak_bytes, ElementsAre(20));
}

TEST(MemoryTest, MeasuredTimelinesMayHaveIt) {
  Costs costs;
  costs.activation_bytes = {10, 10};
  const Timeline timeline = with_memory(
      timeline_of(
          {{{act("0F0"), 0.5, 2}, {act("0F1"), 1, 3}, {act("0B1"), 2.5, 4}}}),
      costs);
  EXPECT_THAT(pairs(timeline.memory[0]),
              ElementsAre(Pair(0, 0), Pair(0.5, 10), Pair(1, 20), Pair(4, 10)));
}

TEST(MemoryTest, NamesAListThatIsTooShort) {
  Costs costs;
  costs.input_bytes = {1};
  EXPECT_THAT(
      [&] {
        with_memory(timeline_of({{{act("1F0"), 0, 1}}}), costs);
      },
      ThrowsMessage<std::invalid_argument>(
          HasSubstr("no input_bytes cost of stage 1")));
}

}  // namespace
}  // namespace gpipe
