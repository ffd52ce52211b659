#include "benchmarks/peers/exported_peer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::benchmarks {
namespace {

constexpr char kGpt[] = "models/exported/testdata/gpt.pt2";  // of 3 blocks

TEST(ExportedPeer, TokensAreThoseOfTheVocabulary) {
  const PeerModel data = exported_peer_data(kGpt, 50, 12, 0);
  EXPECT_EQ(data.input.sizes().vec(), (std::vector<int64_t>{50, 12}));
  EXPECT_EQ(data.input.max().item<int64_t>(), 30);
  EXPECT_EQ(data.target.sizes(), data.input.sizes());
  EXPECT_FALSE(data.target.equal(data.input));
}

TEST(ExportedPeer, PartitionsBeginAtTheModules) {
  const auto whole = balance_of_modules(kGpt, {});
  ASSERT_EQ(whole.size(), 1U);
  const auto one = balance_of_modules(kGpt, {"blocks.1"});
  const auto two = balance_of_modules(kGpt, {"blocks.1", "blocks.2"});
  ASSERT_EQ(two.size(), 3U);
  EXPECT_EQ(one[0], two[0]);
  EXPECT_EQ(one[1], two[1] + two[2]);
  EXPECT_EQ(one[0] + one[1], whole[0]);
}

TEST(ExportedPeer, AModuleThatIsNotThereIsNamed) {
  try {
    balance_of_modules(kGpt, {"blocks.2", "blocks.1"});
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("--cut=blocks.1: "),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(balance_of_modules(kGpt, {"blocks.7"}), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::benchmarks
