#include "gpipe/distributed/world/exchanges.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world/bytes.h"

namespace gpipe::internal {
namespace {

using testing::argument;
using testing::CommunicatorProgramEntry;
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

const CommunicatorProgramEntry kGather("gather", [](auto& world) {
  const int ranks = world->size();
  int round = 0;
  for (const auto& sizes : sizes_of(ranks)) {
    gather(*world, world->all_ranks(), round++, sizes);
  }
  // A round may begin while other ranks are still in an earlier one.
  for (int k = 0; k < 10; ++k) {
    for (const auto& members : subsets_of(ranks)) {
      const std::size_t size = round % 3 == 0 ? 700 : round % 50;
      gather(*world, members, round++, std::vector<std::size_t>(ranks, size));
    }
  }
  std::cout << round << std::endl;
});

const CommunicatorProgramEntry kPieces("pieces", [](auto& world) {
  // A piece has 4 MiB.
  const std::size_t sizes[] = {0, 1, 4 << 20, (4 << 20) + 1, (8 << 20) + 700};
  const int rank = world->rank();
  for (int round = 0; round < 5; ++round) {
    std::vector<std::string> expected;
    for (int each = 0; each < world->size() && rank == 0; ++each) {
      expected.push_back(text_of(each, round, sizes[(each + round) % 5]));
    }
    if (internal::gather(*world, kTag,
                         text_of(rank, round, sizes[(rank + round) % 5]),
                         "a test") != expected) {
      throw std::runtime_error("round " + std::to_string(round));
    }
  }
});

const CommunicatorProgramEntry kDifference("difference", [](auto& world) {
  const int rank = world->rank();
  const auto find = [&](const std::string& mine) {
    if (rank == 0) return;
    const auto found =
        find_difference(*world, {1, 2, 3, 4}, kTag, mine, "a test");
    std::cout << (found ? std::to_string(found->rank) + found->first +
                              found->other
                        : "equal")
              << std::endl;
  };
  find("");
  find(std::string(900, 'a'));
  // Ranks 1 and 2 have "a", rank 3 has "c", and rank 4 has "d".
  find(std::string(1, rank < 3 ? 'a' : static_cast<char>('a' + rank - 1)));
  find(rank == 1 ? "" : "b");
  // Rank 0, which has the store, stays until the others are connected.
  all_gather(*world, kTag, "", "the end");
});

const CommunicatorProgramEntry kGarbage("garbage", [](auto& world) {
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

TEST_P(Gather, GivesTheFirstRankLongTextsInPieces) {
  for (const auto& each : Ranks("pieces", GetParam()).wait()) {
    EXPECT_TRUE(each.ended && each.exit.ok()) << each.err;
  }
}

TEST(Gather, FindsTheFirstTextThatDiffers) {
  const auto results = Ranks("difference", 5).wait();
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_TRUE(results[rank].ended && results[rank].exit.ok())
        << results[rank].err;
    EXPECT_EQ(results[rank].out, rank == 0 ? "" : "equal\nequal\n3ac\n2b\n");
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

constexpr int kRanks = 3;

const Terms kTerms{{"version", "1"}, {"balance", "[2, 2]"}, {"dtype", "Float"}};

struct Case {
  std::map<int, Terms> terms;  // of ranks that do not have kTerms
  int rank;                    // the reported rank; -1 if all agree
  std::string what;
};

Terms with(std::size_t k, const std::string& value) {
  Terms terms = kTerms;
  terms[k].second = value;
  return terms;
}

std::vector<Case> cases() {
  Terms fewer = kTerms, more = kTerms, other_name = kTerms;
  fewer.pop_back();
  more.emplace_back("loss", "mean");
  other_name[1].first = "cut";
  const std::string version =
      "it is of another version of gpipe than rank 0; run the same gpipe on "
      "all ranks";
  const std::string same = "; give all ranks the same";
  return {
      {{}, -1, ""},
      {{{1, with(0, "2")}},
       1,
       "version is 2 on rank 1, but 1 on rank 0" + same},
      {{{2, with(0, "2")}},
       2,
       "version is 2 on rank 2, but 1 on rank 0" + same},
      {{{1, with(1, "[4]")}},
       1,
       "balance is [4] on rank 1, but [2, 2] on rank 0" + same},
      {{{2, with(2, "Half")}},
       2,
       "dtype is Half on rank 2, but Float on rank 0" + same},
      {{{2, with(2, "")}},
       2,
       "dtype is  on rank 2, but Float on rank 0" + same},
      // Every rank is compared with rank 0.
      {{{0, with(1, "[1, 3]")}},
       1,
       "balance is [2, 2] on rank 1, but [1, 3] on rank 0" + same},
      // The first rank that differs is reported, with its first term.
      {{{1, with(2, "Half")}, {2, with(0, "2")}},
       1,
       "dtype is Half on rank 1, but Float on rank 0" + same},
      {{{1, {{"version", "2"}, {"balance", "[4]"}, {"dtype", "Half"}}}},
       1,
       "version is 2 on rank 1, but 1 on rank 0" + same},
      {{{2, fewer}}, 2, version},
      {{{2, more}}, 2, version},
      {{{0, fewer}}, 1, version},
      {{{1, other_name}}, 1, version},
      {{{1, {}}}, 1, version},
      // A value that is longer than a packet.
      {{{2, with(1, std::string(900, '8'))}},
       2,
       "balance is " + std::string(900, '8') +
           " on rank 2, but [2, 2] on rank 0" + same},
      {{{0, {}}, {1, {}}, {2, {}}}, -1, ""},
  };
}

// Each case has its own world, because a failure ends a world.
const RankProgramEntry kAgree("agree", [] {
  const auto all = cases();
  for (std::size_t k = 0; k < all.size(); ++k) {
    WorldOptions options = world_options();
    options.port = std::stoi(argument("port" + std::to_string(k)));
    const auto world = Communicator::connect(options);
    const auto found = all[k].terms.find(world->rank());
    try {
      agree(*world, kTag, found == all[k].terms.end() ? kTerms : found->second);
      std::cout << k << " agreed" << std::endl;
    } catch (const PeerError& error) {
      const RankFailure& failure = error.failure();
      std::cout << k << " rank " << failure.rank << " "
                << to_string(failure.fault) << ": " << failure.what
                << std::endl;
    }
  }
  return 0;
});

TEST(Agreement, TellsAllRanksWhoHasWhatElse) {
  Ranks::Arguments arguments;
  std::string expected;
  const auto all = cases();
  for (std::size_t k = 0; k < all.size(); ++k) {
    const std::string number = std::to_string(k);
    arguments.emplace_back("port" + number, std::to_string(free_port()));
    expected +=
        number + (all[k].rank < 0 ? " agreed\n"
                                  : " rank " + std::to_string(all[k].rank) +
                                        " disagrees: " + all[k].what + "\n");
  }
  for (const auto& each : Ranks("agree", kRanks, arguments).wait()) {
    EXPECT_TRUE(each.ended && each.exit.ok()) << each.err;
    EXPECT_EQ(each.out, expected);
  }
}

}  // namespace
}  // namespace gpipe::internal
