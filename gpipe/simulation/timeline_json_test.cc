#include "gpipe/simulation/timeline_json.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "gpipe/schedule/schedule.h"

namespace gpipe {
namespace {

Timeline timeline_with_all() {
  Timeline timeline = timeline_of(
      {{{{0, ActionKind::kForward, 0}, 0.1, 0.30000000000000004},
        {{0, ActionKind::kRecompute, 0, /*fused_with_next=*/true}, 1, 2},
        {{0, ActionKind::kBackward, 0}, 2, 3}}});
  timeline.first_rank = 3;
  timeline.began = 12345.6789;
  timeline.transfers = {{{0, ActionKind::kForward, 0}, 3, 4, 1, 2, 2.5, 64}};
  timeline.host_copies = {{{{0, ActionKind::kOffload, 0}, 1, 0.5, 0.75}}};
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

}  // namespace
}  // namespace gpipe
