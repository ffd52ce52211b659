#include "gpipe/distributed/world/tags.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

namespace gpipe::internal {
namespace {

TEST(Tags, DifferBetweenPurposesAndChannels) {
  std::set<int> all;
  for (int channel = 0; channel < 100; ++channel) {
    const Tags tags(channel);
    all.insert({tags.header, tags.payload, tags.words, tags.sums});
  }
  EXPECT_EQ(all.size(), 400u);
}

TEST(Tags, OfPayloadsDifferByLengthAndDtype) {
  const Tags tags(3), other(4);
  std::set<int> all;
  for (int64_t bytes = 0; bytes < 100; ++bytes) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const int tag = tags.payload_of(bytes, type);
      EXPECT_GE(tag, 0);
      EXPECT_EQ(tag, Tags(3).payload_of(bytes, type));
      EXPECT_NE(tag, other.payload_of(bytes, type));
      all.insert(tag);
    }
  }
  EXPECT_EQ(all.size(), 200u);
  EXPECT_EQ(all.count(tags.header), 0u);
}

}  // namespace
}  // namespace gpipe::internal
