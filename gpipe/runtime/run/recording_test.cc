#include "gpipe/runtime/run/recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const c10::Device kCpu(c10::kCPU);
const Action kF0{0, ActionKind::kForward, 0};
const Action kF1{1, ActionKind::kForward, 0};
const Action kB1{1, ActionKind::kBackward, 0};

void perform(Recording& recording, std::size_t rank, const Action& action) {
  recording.action_starts(rank, action);
  recording.action_ends(rank);
}

std::vector<std::string> names_of(const std::vector<Span>& spans) {
  std::vector<std::string> names;
  for (const Span& each : spans) names.push_back(to_string(each.action));
  return names;
}

// Returns the transfers as "1F0 0>1 64".
std::vector<std::string> transfers_of(const Recording& recording) {
  std::vector<std::string> all;
  for (const Transfer& each : recording.timeline().transfers) {
    all.push_back(to_string(each.action) + " " + std::to_string(each.from) +
                  ">" + std::to_string(each.to) + " " +
                  std::to_string(static_cast<int>(each.bytes)));
  }
  return all;
}

CopyLog::Copy copy(const Action& made_by, double bytes,
                   const c10::Device& from = kCpu) {
  const Stamp now = Stamp::now(kCpu);
  return {made_by, bytes, from, now, now, kCpu, now};
}

TEST(Recording, HasTheActionsOfEachRankInTheirOrder) {
  Recording recording({kCpu, kCpu, kCpu}, nullptr);
  recording.begin();
  perform(recording, 0, kF0);
  perform(recording, 2, kF1);
  perform(recording, 2, kB1);
  const Timeline timeline = recording.timeline();
  ASSERT_EQ(timeline.ranks.size(), 3u);
  EXPECT_THAT(names_of(timeline.ranks[0]), ElementsAre("0F0"));
  EXPECT_THAT(names_of(timeline.ranks[1]), IsEmpty());
  EXPECT_THAT(names_of(timeline.ranks[2]), ElementsAre("1F0", "1B0"));
  EXPECT_THAT(timeline.peak_in_flight, ElementsAre(1, 0, 1));
  EXPECT_THAT(timeline.transfers, IsEmpty());
}

TEST(Recording, ReadsTheMemoryAtTheBeginningAndAroundEachAction) {
  double next = 0;
  Recording recording({kCpu, kCpu}, [&](const c10::Device& device) {
    EXPECT_EQ(device, kCpu);
    return std::make_optional(next += 10);
  });
  recording.begin();  // 10 and 20
  perform(recording, 1, kF1);
  next = 100;
  perform(recording, 0, kF0);
  next = 0;
  perform(recording, 1, kB1);
  const Timeline timeline = recording.timeline();
  const auto bytes = [&](std::size_t rank) {
    std::vector<double> all;
    for (const auto& each : timeline.memory[rank]) all.push_back(each.bytes);
    return all;
  };
  ASSERT_EQ(timeline.memory.size(), 2u);
  EXPECT_THAT(bytes(0), ElementsAre(10, 110, 120));
  EXPECT_THAT(bytes(1), ElementsAre(20, 30, 40, 10, 20));
  EXPECT_THAT(timeline.peak_bytes, ElementsAre(120, 40));
}

TEST(Recording, HasNoMemoryIfNoBytesAreKnown) {
  const MemoryReader unknown = [](const c10::Device&) { return std::nullopt; };
  for (const MemoryReader& reader : {MemoryReader(), unknown}) {
    Recording recording({kCpu}, reader);
    recording.begin();
    perform(recording, 0, kF0);
    const Timeline timeline = recording.timeline();
    EXPECT_THAT(timeline.memory, IsEmpty());
    EXPECT_THAT(timeline.peak_bytes, IsEmpty());
  }
}

TEST(Recording, ACopyGoesFromTheRankOfItsMakerToTheRankThatLogsIt) {
  Recording recording({kCpu, kCpu, kCpu}, nullptr);
  recording.begin();
  perform(recording, 2, kF0);
  perform(recording, 0, kF1);
  recording.copies(0).copies.push_back(copy(kF0, 64));
  recording.copies(1).copies.push_back(copy(kF1, 8));
  EXPECT_THAT(transfers_of(recording), ElementsAre("0F0 2>0 64", "1F0 0>1 8"));
}

TEST(Recording, HasTheCopiesToAndFromTheHostOfEachRank) {
  Recording recording({kCpu, kCpu}, nullptr);
  EXPECT_THAT(recording.copies(0).host_copies, IsEmpty());
  recording.begin();
  const Stamp early = Stamp::now(kCpu), late = Stamp::now(kCpu);
  auto& copies = recording.copies(1).host_copies;
  copies.push_back({{1, ActionKind::kOffload, 0}, 1, early, late});
  copies.push_back({{1, ActionKind::kReload, 0}, 2, late, late});
  const Timeline timeline = recording.timeline();
  ASSERT_EQ(timeline.host_copies.size(), 2u);
  EXPECT_THAT(timeline.host_copies[0], IsEmpty());
  ASSERT_EQ(timeline.host_copies[1].size(), 2u);
  const HostCopy& first = timeline.host_copies[1][0];
  EXPECT_EQ(to_string(first.action), "1O0");
  EXPECT_EQ(first.place, 1u);
  EXPECT_NEAR(first.end - first.start, late.seconds_since(early), 1e-12);
  EXPECT_EQ(timeline.host_copies[1][1].start, first.end);
}

TEST(Recording, LeavesOutCopiesThatNoRankMadeOrOfADeviceOfNoRank) {
  Recording recording({kCpu}, nullptr);
  recording.begin();
  perform(recording, 0, kF0);
  auto& copies = recording.copies(0).copies;
  copies.push_back(copy({-1, ActionKind::kForward, 0}, 1));
  copies.push_back(copy(kF0, 2, c10::Device(c10::kMeta, 0)));
  copies.push_back(copy(kF0, 3));
  EXPECT_THAT(transfers_of(recording), ElementsAre("0F0 0>0 3"));
}

TEST(Recording, AGradientIsOfTheInputPartIfTheBackwardHasTwo) {
  for (const bool two_parts : {false, true}) {
    Recording recording({kCpu, kCpu}, nullptr);
    recording.begin();
    Action backward = kB1;
    if (two_parts) backward.kind = ActionKind::kBackwardInput;
    perform(recording, 1, backward);
    recording.copies(0).copies.push_back(copy(kB1, 4));
    EXPECT_THAT(transfers_of(recording),
                ElementsAre(two_parts ? "1I0 1>0 4" : "1B0 1>0 4"));
  }
}

TEST(Recording, MessagesAreOrderedByStartAndOnesFromBeforeCountFromZero) {
  Recording recording({kCpu}, nullptr);
  const Recording::Time early;
  recording.begin();
  const Recording::Time late =
      std::chrono::steady_clock::now() + std::chrono::hours(1);
  recording.message(kB1, 1, 0, 5, late, late + std::chrono::hours(1));
  recording.message(kF0, 0, 1, 6, early, late);
  EXPECT_THAT(transfers_of(recording), ElementsAre("0F0 0>1 6", "1B0 1>0 5"));
  const auto transfers = recording.timeline().transfers;
  EXPECT_EQ(transfers[0].start, 0);
  EXPECT_EQ(transfers[0].sent, transfers[0].end);
  EXPECT_EQ(transfers[1].start, transfers[0].end);
  EXPECT_NEAR(transfers[1].end - transfers[1].start, 3600, 1e-6);
}

}  // namespace
}  // namespace gpipe::internal
