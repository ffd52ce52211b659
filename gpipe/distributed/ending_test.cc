#include "gpipe/distributed/ending.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "gpipe/distributed/world/bytes.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using testing::error_of;

Ending ending() {
  Ending ending;
  ending.drew = true;
  ending.replica = 3;
  ending.type = at::kDouble;
  ending.losses = {0.5, -2};
  ending.weights = {0.25, 0.75};
  return ending;
}

TEST(Ending, ComesBack) {
  const Ending back = Ending::decode(ending().encode());
  EXPECT_TRUE(back.drew);
  EXPECT_EQ(back.replica, 3);
  EXPECT_EQ(back.type, at::kDouble);
  EXPECT_EQ(back.losses, ending().losses);
  EXPECT_EQ(back.weights, ending().weights);
  EXPECT_TRUE(Ending::decode(Ending().encode()).losses.empty());
}

TEST(Ending, IsRefusedIfItIsCutOffOrTooLong) {
  const std::string bytes = ending().encode();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(error_of([&] { Ending::decode(bytes.substr(0, size)); }), "")
        << size;
  }
  EXPECT_NE(error_of([&] { Ending::decode(bytes + "x"); }), "");
}

// 16 times such a count overflows to 0, or to the number of bytes that are
// there.
TEST(Ending, IsRefusedIfItsLengthWraps) {
  for (const uint64_t more : {0, 2}) {
    std::string bytes = ending().encode();
    std::string count;
    put(count, (uint64_t{1} << 60) + more);
    bytes.replace(6, count.size(), count);
    if (more == 0) bytes.resize(14);
    EXPECT_EQ(error_of([&] { Ending::decode(bytes); }),
              "c10::Error: the end of a step says that it has " +
                  std::to_string((uint64_t{1} << 60) + more) +
                  " losses, for which its " + std::to_string(bytes.size()) +
                  " bytes are not the right number; run the same gpipe on all "
                  "ranks");
  }
}

}  // namespace
}  // namespace gpipe::internal
