#include "gpipe/placement/names.h"

#include <gtest/gtest.h>

namespace gpipe::placement {
namespace {

using Names = std::vector<std::string>;

TEST(Names, NearestComeFirst) {
  EXPECT_EQ(nearest("encodr", {"head", "decoder", "encoder"}),
            (Names{"encoder", "decoder", "head"}));
  EXPECT_EQ(nearest("encodr", {"head", "decoder", "encoder"}, 1),
            (Names{"encoder"}));
  EXPECT_EQ(nearest("x", {}), Names());
}

TEST(Names, OfEquallyNearOnesTheEarlier) {
  EXPECT_EQ(nearest("ac", {"ab", "ad", "xyz", "ae"}, 2), (Names{"ab", "ad"}));
}

TEST(Names, UpperAndLowerCaseAreTheSame) {
  EXPECT_EQ(nearest("CUDA", {"cpu", "cuda"}, 1), (Names{"cuda"}));
}

TEST(Names, TextOfOneTwoAndThree) {
  EXPECT_EQ(nearest_text("a", {"a"}), "'a'");
  EXPECT_EQ(nearest_text("a", {"ab", "a"}), "'a' and 'ab'");
  EXPECT_EQ(nearest_text("a", {"abc", "ab", "a", "xyz"}),
            "'a', 'ab' and 'abc'");
}

}  // namespace
}  // namespace gpipe::placement
