#include "gpipe/distributed/world/waits.h"

#include <gtest/gtest.h>

#include <string>

#include "gpipe/distributed/world/bytes.h"

namespace gpipe::internal {
namespace {

constexpr std::size_t kPlenty = 4096;

TEST(WaitsTest, FollowAChainToItsEnd) {
  Waits waits(0, 4);
  EXPECT_EQ(waits.end_of_chain(0), 0);
  EXPECT_EQ(waits.set_own(2), -1);
  Waits other(2, 4);
  other.set_own(3);
  waits.merge(other.encode(kPlenty));
  EXPECT_EQ(waits.end_of_chain(0), 3);
  EXPECT_EQ(waits.end_of_chain(1), 1);
}

TEST(WaitsTest, ACircleHasNoEnd) {
  Waits waits(0, 2), other(1, 2);
  waits.set_own(1);
  other.set_own(0);
  waits.merge(other.encode(kPlenty));
  EXPECT_EQ(waits.end_of_chain(1), 1);
}

TEST(WaitsTest, OnlyTheExpectedValueIsReplaced) {
  Waits waits(0, 3);
  waits.set_own(1);
  waits.set_own(2, -1);
  EXPECT_EQ(waits.end_of_chain(0), 1);
  waits.set_own(1, -1);
  EXPECT_EQ(waits.end_of_chain(0), 0);
}

TEST(WaitsTest, TravelThroughOtherRanksAndTheNewestCounts) {
  Waits first(0, 3), middle(1, 3), last(2, 3);
  last.set_own(1);
  const std::string old = last.encode(kPlenty);
  last.set_own(-1);
  middle.merge(last.encode(kPlenty));
  first.merge(middle.encode(kPlenty));
  first.merge(old);
  EXPECT_EQ(first.end_of_chain(2), 2);
  last.set_own(0);
  middle.merge(last.encode(kPlenty));
  first.merge(middle.encode(kPlenty));
  EXPECT_EQ(first.end_of_chain(2), 0);
}

// 16 bytes per rank; its own rank is always among them.
TEST(WaitsTest, ThatDoNotFitTakeTurns) {
  constexpr int kRanks = 10;
  Waits from(0, kRanks), to(1, kRanks);
  for (int rank = 1; rank < kRanks; ++rank) {
    Waits each(rank, kRanks);
    each.set_own(0);
    from.merge(each.encode(kPlenty));
  }
  for (int message = 0; message < 3; ++message) {
    const std::string bytes = from.encode(64);
    EXPECT_LE(bytes.size(), 64u);
    to.merge(bytes);
  }
  int known = 0;
  for (int rank = 2; rank < kRanks; ++rank) {
    known += to.end_of_chain(rank) == 0;
  }
  EXPECT_EQ(known, 8);
}

TEST(WaitsTest, WhatIsNotPossibleIsIgnored) {
  Waits waits(0, 2);
  std::string bytes;
  for (const int32_t rank : {-1, 2, 1}) {
    put(bytes, rank);
    put(bytes, int64_t{9});
    put(bytes, int32_t{7});
  }
  waits.merge(bytes + "rest");
  EXPECT_EQ(waits.end_of_chain(1), 1);
}

}  // namespace
}  // namespace gpipe::internal
