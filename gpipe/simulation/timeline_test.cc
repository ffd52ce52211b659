#include "gpipe/simulation/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/one_forward_one_backward.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/bottlenecks.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/draw.h"
#include "gpipe/simulation/simulate.h"
#include "gpipe/simulation/timeline_testing.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(TimelineTest, IdleTimeIsOutsideOfAllSpans) {
  // The first three spans overlap and cover the time from 1 to 6.
  const Timeline timeline = timeline_of({{{act("0F0"), 1, 5},
                                          {act("0F1"), 2, 3},
                                          {act("0F2"), 4, 6},
                                          {act("0B2"), 8, 9}},
                                         {{act("1F0"), 0, 10}},
                                         {}});
  EXPECT_EQ(timeline.makespan, 10);
  EXPECT_THAT(timeline.idle, ElementsAre(4, 0, 10));
  EXPECT_DOUBLE_EQ(timeline.bubble_fraction, 14.0 / 30);
  EXPECT_DOUBLE_EQ(timeline.bubble_ratio, 14.0 / 16);
}

// The bubbles are (p - 1) / (m + p - 1) and (p - 1) / m.
TEST(TimelineTest, BubblesAreThoseOfThePapers) {
  for (const int p : {1, 2, 8}) {
    for (const int m : {1, 4, 32}) {
      Costs costs;
      costs.forward.assign(p, 1);
      costs.backward.assign(p, 2);
      const Timeline timeline = simulate(fill_drain(p, m), costs);
      EXPECT_DOUBLE_EQ(timeline.bubble_fraction, (p - 1.0) / (m + p - 1));
      EXPECT_DOUBLE_EQ(timeline.bubble_ratio, (p - 1.0) / m);
    }
  }
}

TEST(TimelineTest, CountsWhatIsInFlight) {
  const Timeline timeline = timeline_of({{{act("0F0"), 0, 1},
                                          {act("0F1"), 1, 2},
                                          {act("0I0"), 2, 3},
                                          {act("0F2"), 3, 4},
                                          {act("0W0"), 4, 5},
                                          {act("0F3"), 5, 6}}});
  EXPECT_THAT(timeline.peak_in_flight, ElementsAre(3));
}

TEST(TimelineTest, RefusesSpansOfHostCopies) {
  EXPECT_THAT(
      [] {
        timeline_of({{{act("0O3"), 0, 1}}});
      },
      ThrowsMessage<std::invalid_argument>(
          "the span of 0O3 on rank 0 is a copy to or from the host: spans are "
          "of computation; put it into host_copies"));
}

TEST(TimelineTest, NamesASpanThatCannotBe) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const auto refuse = [](double start, double end) {
    EXPECT_THAT(
        [&] {
          timeline_of({{}, {{act("0F0"), 1, 2}, {act("0F1"), start, end}}});
        },
        ThrowsMessage<std::invalid_argument>(
            AllOf(HasSubstr("0F1 on rank 1"), HasSubstr("after a start at 1"))))
        << start << " " << end;
  };
  refuse(3, 2);
  refuse(0.5, 3);
  refuse(-1, 3);
  refuse(kNaN, 3);
  refuse(3, kNaN);
  refuse(3, kInfinity);
}

// A simulated step, whose times are multiples of 1/4 s.
Timeline whole_step() {
  Costs costs;
  costs.forward = {1, 2, 1};
  costs.backward = {2, 4, 2};
  costs.latency = 0.25;
  return simulate(one_forward_one_backward(3, 4), costs);
}

// Returns what each rank would have recorded of the step, if its recording had
// begun `late[r]` seconds after the step.
std::vector<Timeline> parts_of(const Timeline& whole,
                               const std::vector<double>& late) {
  std::vector<Timeline> parts;
  for (int rank = 0; rank < static_cast<int>(whole.ranks.size()); ++rank) {
    auto spans = whole.ranks[rank];
    for (Span& each : spans) {
      each.start -= late[rank];
      each.end -= late[rank];
    }
    Timeline part = timeline_of({spans});
    part.first_rank = rank;
    part.began = 100 + late[rank];
    for (Transfer each : whole.transfers) {
      if (each.from != rank && each.to != rank) continue;
      each.start -= late[rank];
      each.sent -= late[rank];
      each.end -= late[rank];
      // Each end knows only its own time.
      if (each.from != rank) each.start = each.sent = each.end;
      if (each.to != rank) each.end = each.sent;
      part.transfers.push_back(each);
    }
    part.memory = {{{0, 8.0 * rank}}};
    part.peak_bytes = {8.0 * rank};
    parts.push_back(std::move(part));
  }
  return parts;
}

void expect_equal(const Timeline& a, const Timeline& b) {
  ASSERT_EQ(a.ranks.size(), b.ranks.size());
  for (std::size_t r = 0; r < a.ranks.size(); ++r) {
    ASSERT_EQ(a.ranks[r].size(), b.ranks[r].size());
    for (std::size_t k = 0; k < a.ranks[r].size(); ++k) {
      EXPECT_EQ(to_string(a.ranks[r][k].action),
                to_string(b.ranks[r][k].action));
      EXPECT_EQ(a.ranks[r][k].start, b.ranks[r][k].start);
      EXPECT_EQ(a.ranks[r][k].end, b.ranks[r][k].end);
    }
  }
  EXPECT_EQ(a.makespan, b.makespan);
  EXPECT_EQ(a.idle, b.idle);
}

TEST(MergeTest, GivesTheStepOfWhichEachRankKnowsItsPart) {
  const Timeline whole = whole_step();
  // Ranks 1 and 2 have nothing to do at first.
  const Timeline merged = merge_timelines(parts_of(whole, {0, 1, 3}));
  expect_equal(merged, whole);
  EXPECT_EQ(merged.began, 100);
  ASSERT_FALSE(whole.transfers.empty());
  ASSERT_EQ(merged.transfers.size(), whole.transfers.size());
  const auto times_of = [](const Timeline& timeline) {
    std::vector<std::vector<double>> times;
    for (const Transfer& each : timeline.transfers) {
      times.push_back({each.start, each.sent, each.end,
                       static_cast<double>(each.from),
                       static_cast<double>(each.to)});
    }
    std::sort(times.begin(), times.end());
    return times;
  };
  EXPECT_EQ(times_of(merged), times_of(whole));
  EXPECT_EQ(merged.memory[2][0].time, 3);
  EXPECT_EQ(merged.peak_bytes, (std::vector<double>{0, 8, 16}));
  // So idle time has the causes that one process would find.
  const auto expected = idle_parts(whole), found = idle_parts(merged);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(found[rank].schedule, expected[rank].schedule);
    EXPECT_EQ(found[rank].imbalance, expected[rank].imbalance);
    EXPECT_EQ(found[rank].transfer, expected[rank].transfer);
    EXPECT_EQ(found[rank].remote, 0);
  }
}

TEST(MergeTest, ClocksThatDifferAreNoError) {
  const Timeline whole = whole_step();
  for (const double error : {-2.0, -0.5, 0.5, 2.0}) {
    auto parts = parts_of(whole, {0, 1, 3});
    parts[1].began += error;
    const Timeline merged = merge_timelines(std::move(parts));
    for (const Transfer& each : merged.transfers) {
      EXPECT_LE(each.start, each.sent);
      EXPECT_LE(each.sent, each.end);
    }
    EXPECT_NE(to_chrome_trace(merged).find("traceEvents"), std::string::npos);
  }
}

TEST(MergeTest, ASplitBackwardIsOneCopyAtBothEnds) {
  const Action input = act("1I0");
  Timeline sender = timeline_of({{{input, 0, 1}}});
  sender.first_rank = 1;
  sender.transfers = {{input, 1, 0, 1, 1.5, 1.5, 64}};
  Timeline receiver = timeline_of({{{act("0B0"), 2, 3}}});
  // The receiver takes it for a whole backward.
  receiver.transfers = {{act("1B0"), 1, 0, 1.75, 1.75, 1.75, 64}};
  const Timeline merged = merge_timelines({receiver, sender});
  ASSERT_EQ(merged.transfers.size(), 1u);
  EXPECT_EQ(merged.transfers[0].action.kind, ActionKind::kBackwardInput);
  EXPECT_EQ(merged.transfers[0].start, 1);
  EXPECT_EQ(merged.transfers[0].sent, 1.5);
  EXPECT_EQ(merged.transfers[0].end, 1.75);
}

TEST(MergeTest, SumsOfGradientsStayWithTheirRanks) {
  const Action action = act("0F0");
  Timeline first = timeline_of({{{action, 0, 1}}}), second = first;
  second.first_rank = 1;
  second.began = 0.5;
  second.gradient_sums = {{{1, 1.5, 64}, {2, 3, 32}}};
  const Timeline merged = merge_timelines({first, second});
  ASSERT_EQ(merged.gradient_sums.size(), 2u);
  EXPECT_TRUE(merged.gradient_sums[0].empty());
  ASSERT_EQ(merged.gradient_sums[1].size(), 2u);
  EXPECT_EQ(merged.gradient_sums[1][0].start, 1.5);
  EXPECT_EQ(merged.gradient_sums[1][1].end, 3.5);
  EXPECT_EQ(merged.gradient_sums[1][1].bytes, 32);
  EXPECT_TRUE(merge_timelines({first}).gradient_sums.empty());
}

TEST(MergeTest, RefusesRanksThatDoNotFollow) {
  auto parts = parts_of(whole_step(), {0, 0, 0});
  std::swap(parts[1], parts[2]);
  EXPECT_THROW(merge_timelines(std::move(parts)), std::invalid_argument);
  EXPECT_THROW(merge_timelines({}), std::invalid_argument);
}

Timeline timeline_with_all() {
  Timeline timeline = timeline_of({{{act("0F0"), 0.1, 0.30000000000000004},
                                    {paired(act("0R0")), 1, 2},
                                    {act("0B0"), 2, 3}}});
  timeline.first_rank = 3;
  timeline.began = 12345.6789;
  timeline.transfers = {{act("0F0"), 3, 4, 1, 2, 2.5, 64}};
  timeline.host_copies = {{{act("0O0"), 1, 0.5, 0.75}}};
  timeline.gradient_sums = {{{2, 2.5, 1024}}};
  timeline.memory = {{{0, 8}, {1, 16}}};
  timeline.peak_bytes = {16};
  return timeline;
}

TEST(TimelineJsonTest, ReadsWhatItWrites) {
  const Timeline timeline = timeline_with_all();
  const Timeline again = parse_timeline(to_json(timeline));
  EXPECT_EQ(to_json(again), to_json(timeline));
  EXPECT_EQ(again.ranks[0][0].end, 0.30000000000000004);
  EXPECT_TRUE(again.ranks[0][1].action.fused_with_next);
  EXPECT_EQ(again.host_copies[0][0].action.kind, ActionKind::kOffload);
  EXPECT_EQ(again.host_copies[0][0].place, 1u);
  EXPECT_EQ(again.gradient_sums[0][0].end, 2.5);
  EXPECT_EQ(again.gradient_sums[0][0].bytes, 1024);
  EXPECT_EQ(again.makespan, 3);
  EXPECT_EQ(again.idle, timeline.idle);
}

TEST(TimelineJsonTest, RefusesOtherTexts) {
  std::string other_kind = to_json(timeline_with_all());
  const std::string kind = "[0,0,0,false]";
  other_kind.replace(other_kind.find(kind), kind.size(), "[0,99,0,false]");
  for (const std::string& text :
       {std::string(), std::string("{}"), std::string("[1]"),
        to_json(timeline_with_all()).substr(1), other_kind,
        std::string(R"({"ranks": [[[[0,0,0,false], 2, 1]]]})")}) {
    EXPECT_THROW(parse_timeline(text), std::invalid_argument) << text;
  }
}

TEST(TimelineJsonTest, RefusesListsOfOtherRanks) {
  Timeline timeline = timeline_with_all();
  timeline.memory.emplace_back();
  EXPECT_THAT([&] { parse_timeline(to_json(timeline)); },
              ThrowsMessage<std::invalid_argument>(
                  "this is no timeline: it has 1 ranks, and memory of 2"));
  timeline = timeline_with_all();
  timeline.peak_bytes.clear();
  EXPECT_THAT([&] { parse_timeline(to_json(timeline)); },
              ThrowsMessage<std::invalid_argument>(
                  "this is no timeline: it has memory of 1 ranks, and "
                  "peak_bytes of 0"));
  timeline = timeline_with_all();
  timeline.first_rank = -1;
  EXPECT_THAT([&] { parse_timeline(to_json(timeline)); },
              ThrowsMessage<std::invalid_argument>(
                  "this is no timeline: its first_rank is -1"));
  timeline = timeline_with_all();
  timeline.host_copies[0][0].place = 4;
  EXPECT_THAT([&] { parse_timeline(to_json(timeline)); },
              ThrowsMessage<std::invalid_argument>(
                  "this is no timeline: the host copy 0O0 of rank 0 is at "
                  "place 4 of 3"));
  timeline = timeline_with_all();
  timeline.ranks.emplace_back();
  EXPECT_THAT([&] { parse_timeline(to_json(timeline)); },
              ThrowsMessage<std::invalid_argument>(
                  "this is no timeline: it has 2 ranks, and host_copies of 1"));
}

}  // namespace
}  // namespace gpipe
