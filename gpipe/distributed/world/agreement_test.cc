#include "gpipe/distributed/world/agreement.h"

#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/testing/ranks.h"

namespace gpipe::internal {
namespace {

using testing::argument;
using testing::RankProgramEntry;
using testing::Ranks;
using testing::world_options;

constexpr int kTag = 6;
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
  const std::string version = "it is of another version of gpipe than rank 0";
  return {
      {{}, -1, ""},
      {{{1, with(0, "2")}}, 1, "version is 2 on rank 1, but 1 on rank 0"},
      {{{2, with(0, "2")}}, 2, "version is 2 on rank 2, but 1 on rank 0"},
      {{{1, with(1, "[4]")}},
       1,
       "balance is [4] on rank 1, but [2, 2] on rank 0"},
      {{{2, with(2, "Half")}},
       2,
       "dtype is Half on rank 2, but Float on rank 0"},
      {{{2, with(2, "")}}, 2, "dtype is  on rank 2, but Float on rank 0"},
      // Every rank is compared with rank 0.
      {{{0, with(1, "[1, 3]")}},
       1,
       "balance is [2, 2] on rank 1, but [1, 3] on rank 0"},
      // The first rank that differs is reported, with its first term.
      {{{1, with(2, "Half")}, {2, with(0, "2")}},
       1,
       "dtype is Half on rank 1, but Float on rank 0"},
      {{{1, {{"version", "2"}, {"balance", "[4]"}, {"dtype", "Half"}}}},
       1,
       "version is 2 on rank 1, but 1 on rank 0"},
      {{{2, fewer}}, 2, version},
      {{{2, more}}, 2, version},
      {{{0, fewer}}, 1, version},
      {{{1, other_name}}, 1, version},
      {{{1, {}}}, 1, version},
      // A value that is longer than a packet.
      {{{2, with(1, std::string(900, '8'))}},
       2,
       "balance is " + std::string(900, '8') +
           " on rank 2, but [2, 2] on rank 0"},
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
