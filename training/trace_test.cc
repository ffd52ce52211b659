#include "training/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "gpipe/simulation.h"
#include "models/testing/files.h"

namespace gpipe {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::new_folder;
using testing::read_bytes;
using testing::write_bytes;

// Returns a timeline of 0F0, a copy, 1F0, 1B0, a copy, a late recompute, 0B0.
Timeline example() {
  Timeline timeline = timeline_of(
      {{{{0, ActionKind::kForward, 0}, 0, 2},
        {{0, ActionKind::kRecompute, 0, /*fused_with_next=*/true}, 10, 12},
        {{0, ActionKind::kBackward, 0}, 12, 16}},
       {{{1, ActionKind::kForward, 0}, 3, 5},
        {{1, ActionKind::kBackward, 0}, 5, 9}}});
  timeline.transfers = {
      {{0, ActionKind::kForward, 0}, 0, 1, 2, 3, 3, 2048},
      {{1, ActionKind::kBackward, 0}, 1, 0, 9, 9.5, 9.5, 2048}};
  timeline.memory = {{{0, 1024}, {2, 4096}}, {{0, 512}}};
  timeline.peak_bytes = {4096, 512};
  return timeline;
}

TEST(TraceTest, TheSummaryIsATableOfRanksCausesAndLinks) {
  // Rank 1 waits 2 s until its input exists and 1 s for the copy of it. Both
  // ranks wait 0.5 s for the copy of the gradient, and 0.5 s without a cause.
  EXPECT_EQ(timeline_summary(example()),
            "timeline: 16 s, 2 ranks, bubble 56.2 %\n"
            "          busy          recompute          id"
            "le          peak memory\n"
            "  rank 0   8 s  50.0 %        2 s  12.5 %   8"
            " s  50.0 %        4 KiB\n"
            "  rank 1   6 s  37.5 %       0 us   0.0 %  10"
            " s  62.5 %        512 B\n"
            "idle time:\n"
            "          idle  warm-up, drain          imbal"
            "ance         transfer          overhead       \n"
            "  rank 0   8 s             6 s  75.0 %       "
            "0 us  0.0 %     1.5 s  18.8 %    500 ms  6.2 %\n"
            "  rank 1  10 s             8 s  80.0 %       "
            "0 us  0.0 %     1.5 s  15.0 %    500 ms  5.0 %\n"
            "  all     18 s            14 s  77.8 %       "
            "0 us  0.0 %       3 s  16.7 %       1 s  5.6 %\n"
            "transfers:\n"
            "               copies  bytes    time\n"
            "  rank 0 to 1       1  2 KiB     1 s\n"
            "  rank 1 to 0       1  2 KiB  500 ms\n");
}

TEST(TraceTest, WhatIsNotKnownIsLeftOut) {
  Timeline timeline = example();
  timeline.transfers.clear();
  timeline.peak_bytes.clear();
  timeline.memory.clear();
  const std::string text = timeline_summary(timeline);
  EXPECT_EQ(text.find("copies"), std::string::npos);
  EXPECT_EQ(text.find("memory"), std::string::npos);
}

TEST(TraceTest, CopiesToAndFromTheHostAreATable) {
  Timeline timeline = example();
  const Action away{0, ActionKind::kOffload, 0},
      back{0, ActionKind::kReload, 0};
  timeline.host_copies = {{}, {{away, 1, 5, 5.5}, {back, 1, 6, 7}}};
  EXPECT_THAT(timeline_summary(timeline),
              HasSubstr("copies to and from the host:\n"
                        "                    copies    time\n"
                        "  rank 1 to host         1  500 ms\n"
                        "  rank 1 from host       1     1 s\n"));
}

TEST(TraceTest, OneRankOfSeveralProcessesHasItsOwnNumber) {
  Timeline timeline = timeline_of({{{{1, ActionKind::kForward, 0}, 3, 4}}});
  timeline.first_rank = 1;
  timeline.transfers = {{{0, ActionKind::kForward, 0}, 0, 1, 2, 3, 3, 64}};
  const std::string text = timeline_summary(timeline);
  EXPECT_THAT(text, HasSubstr("timeline: 4 s, 1 rank, bubble 75.0 %\n"));
  EXPECT_THAT(text, HasSubstr("remote ranks"));
  EXPECT_THAT(text, HasSubstr("rank 1  "));
  EXPECT_THAT(text, HasSubstr("rank 0 to 1       1   64 B   1 s\n"));
}

TEST(TraceTest, TheFileHasTracksCopiesIdleTimeAndMemory) {
  const std::string path = new_folder() + "step.json";
  write_bytes(path, "what was there before");
  EXPECT_EQ(write_trace(path, example()), timeline_summary(example()));
  const auto json = nlohmann::json::parse(read_bytes(path));
  std::set<std::string> tracks, categories, counters;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("name") == "thread_name") {
      tracks.insert(event.at("args").at("name"));
    }
    if (event.at("ph") == "X") categories.insert(event.at("cat"));
    if (event.at("ph") == "C") counters.insert(event.at("name"));
  }
  EXPECT_EQ(tracks, (std::set<std::string>{"rank 0", "rank 1", "link 0 to 1",
                                           "link 1 to 0"}));
  EXPECT_EQ(categories, (std::set<std::string>{"forward", "backward",
                                               "recompute", "copy", "idle"}));
  EXPECT_EQ(counters,
            (std::set<std::string>{"memory of rank 0", "memory of rank 1"}));
}

TEST(TraceTest, AFileThatCannotBeWrittenIsNamedWithTheReason) {
  const std::string path = new_folder() + "none/step.json";
  const std::string error = error_of([&] { write_trace(path, example()); });
  EXPECT_THAT(error, HasSubstr(path));
  EXPECT_THAT(error, HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace gpipe
