#include "gpipe/distributed/world/all_gather.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world/bytes.h"

namespace gpipe::internal {
namespace {

using testing::RankProgramEntry;
using testing::Ranks;
using testing::world_options;

constexpr int kTag = 6;
// The number of bytes after the length (8 bytes) in a packet.
constexpr std::size_t kFits = 504;

// Returns a text that differs by rank and round, and contains zeros.
std::string text_of(int rank, int round, std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t k = 0; k < size; ++k) {
    text[k] = static_cast<char>(k * 7 + 31 * rank + 5 * round);
  }
  return text;
}

// Returns the sizes of the texts by round and rank: equal ones, then mixed
// ones.
std::vector<std::vector<std::size_t>> sizes_of(int ranks) {
  std::vector<std::vector<std::size_t>> all;
  const std::size_t sizes[] = {0, 1, kFits - 1, kFits, kFits + 1, 512, 3 << 20};
  for (const std::size_t size : sizes) {
    all.emplace_back(ranks, size);
  }
  for (int shift = 0; shift < 7; ++shift) {
    std::vector<std::size_t>& mixed = all.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
      mixed.push_back(sizes[(rank + shift) % 7]);
    }
  }
  return all;
}

std::vector<std::vector<int>> subsets_of(int ranks) {
  std::vector<std::vector<int>> subsets;
  for (int bits = 1; bits < 1 << ranks; ++bits) {
    std::vector<int>& members = subsets.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
      if (bits >> rank & 1) members.push_back(rank);
    }
  }
  return subsets;
}

void gather(Communicator& world, const std::vector<int>& members, int round,
            const std::vector<std::size_t>& sizes) {
  const int rank = world.rank();
  if (std::find(members.begin(), members.end(), rank) == members.end()) return;
  std::vector<std::string> expected;
  for (const int each : members) {
    expected.push_back(text_of(each, round, sizes[each]));
  }
  const auto all = all_gather(world, members, kTag,
                              text_of(rank, round, sizes[rank]), "a test");
  if (all != expected) {
    throw std::runtime_error("round " + std::to_string(round) + " with " +
                             std::to_string(members.size()) + " members");
  }
}

const RankProgramEntry kGather("gather", [] {
  const auto world = Communicator::connect(world_options());
  const int ranks = world->size();
  std::vector<int> everybody(ranks);
  std::iota(everybody.begin(), everybody.end(), 0);
  int round = 0;
  for (const auto& sizes : sizes_of(ranks)) {
    gather(*world, everybody, round++, sizes);
  }
  // A round may begin while other ranks are still in an earlier one.
  for (int k = 0; k < 10; ++k) {
    for (const auto& members : subsets_of(ranks)) {
      const std::size_t size = round % 3 == 0 ? 700 : round % 50;
      gather(*world, members, round++, std::vector<std::size_t>(ranks, size));
    }
  }
  std::cout << round << std::endl;
  return 0;
});

const RankProgramEntry kGarbage("garbage", [] {
  const auto world = Communicator::connect(world_options());
  if (world->rank() == 1) {
    const auto action = [] { return "sending garbage"; };
    const at::Tensor bytes = at::full({512}, 0xff, at::kByte);
    world->wait(world->send(bytes, 0, kTag, action), 0, action);
  } else {
    try {
      all_gather(*world, {0, 1}, kTag, "", "a test");
    } catch (const c10::Error& error) {
      std::cout << error.what_without_backtrace() << std::endl;
    }
  }
  return 0;
});

class Gather : public ::testing::TestWithParam<int> {};

TEST_P(Gather, GivesAllMembersWhatEachSaid) {
  const int ranks = GetParam();
  const int rounds = 14 + 10 * ((1 << ranks) - 1);
  for (const auto& each : Ranks("gather", ranks).wait()) {
    EXPECT_TRUE(each.ended && each.exit.ok()) << each.err;
    EXPECT_EQ(each.out, std::to_string(rounds) + "\n");
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Gather, ::testing::Range(1, 6));

TEST(Gather, SaysWhoSentWhatIsNoMessage) {
  const auto results = Ranks("garbage", 2).wait();
  EXPECT_EQ(results[0].out,
            "rank 1 disagrees: it sent something that is not a message of "
            "gpipe [noticed by rank 0 in a test] (this is rank 0)\n")
      << results[0].err;
  EXPECT_TRUE(results[0].exit.ok() && results[1].ended);
}

TEST(PutAndTake, GiveNumbersBackAndZerosAtTheEnd) {
  std::string bytes;
  put(bytes, int64_t{-5});
  put(bytes, uint8_t{200});
  put(bytes, 0.1);
  EXPECT_EQ(bytes.size(), 17u);
  std::size_t at = 0;
  EXPECT_EQ(take<int64_t>(bytes, at), -5);
  EXPECT_EQ(take<uint8_t>(bytes, at), 200);
  EXPECT_EQ(take<double>(bytes, at), 0.1);
  EXPECT_EQ(at, 17u);
  // A number that is cut off reads as zero, and `at` moves past the end.
  at = 10;
  EXPECT_EQ(take<double>(bytes, at), 0.0);
  EXPECT_EQ(at, 18u);
}

}  // namespace
}  // namespace gpipe::internal
