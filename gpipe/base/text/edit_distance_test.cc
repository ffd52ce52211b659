#include "gpipe/base/text/edit_distance.h"

#include <gtest/gtest.h>

namespace gpipe {
namespace {

TEST(EditDistanceTest, CountsInsertionsDeletionsAndExchanges) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("same", "same"), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("ab", "ba"), 2);
  EXPECT_EQ(edit_distance("encodr", "encoder"), 1);
  EXPECT_EQ(edit_distance("encoder", "encodr"), 1);
}

}  // namespace
}  // namespace gpipe
