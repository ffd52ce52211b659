#include "gpipe/placement/names.h"

#include <gtest/gtest.h>

namespace gpipe::placement {
namespace {

TEST(Names, NearestComeFirst) {
  EXPECT_EQ(nearest_text("encodr", {"head", "decoder", "encoder"}),
            "'encoder', 'decoder' and 'head'");
  EXPECT_EQ(nearest_text("x", {}), "");
}

TEST(Names, OfEquallyNearOnesTheEarlier) {
  EXPECT_EQ(nearest_text("ac", {"ab", "ad", "xyz", "ae"}),
            "'ab', 'ad' and 'ae'");
}

TEST(Names, UpperAndLowerCaseAreTheSame) {
  EXPECT_EQ(nearest_text("CUDA", {"cpu", "cuda"}), "'cuda' and 'cpu'");
}

TEST(Names, TextOfOneTwoAndThree) {
  EXPECT_EQ(nearest_text("a", {"a"}), "'a'");
  EXPECT_EQ(nearest_text("a", {"ab", "a"}), "'a' and 'ab'");
  EXPECT_EQ(nearest_text("a", {"abc", "ab", "a", "xyz"}),
            "'a', 'ab' and 'abc'");
}

}  // namespace
}  // namespace gpipe::placement
