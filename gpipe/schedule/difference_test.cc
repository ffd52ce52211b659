#include "gpipe/schedule/difference.h"

#include <gtest/gtest.h>

#include "gpipe/schedule/generators/fill_drain.h"
#include "gpipe/schedule/generators/one_forward_one_backward.h"
#include "gpipe/schedule/transform.h"

namespace gpipe {
namespace {

std::string difference(const Schedule& a, const Schedule& b) {
  return describe_difference(a, "mine", b, "yours");
}

TEST(Difference, IsEmptyForEqualSchedules) {
  EXPECT_EQ(difference(fill_drain(2, 4), fill_drain(2, 4)), "");
}

TEST(Difference, BeginsWithNumbers) {
  EXPECT_EQ(difference(fill_drain(1, 4), fill_drain(2, 4)),
            "mine has 1 rank and yours has 2 ranks");
  EXPECT_EQ(difference(fill_drain(2, 1), fill_drain(2, 4)),
            "mine has 1 micro-batch and yours has 4 micro-batches");
}

TEST(Difference, NamesTheFirstActionThatDiffers) {
  // Rank 0 of 1F1B begins its backwards after two forwards.
  EXPECT_EQ(difference(fill_drain(2, 4), one_forward_one_backward(2, 4)),
            "action 2 of rank 0 is 0F2 in mine and 0B0 in yours");
}

TEST(Difference, NamesAnActionThatIsFusedInOneOnly) {
  Schedule fused = one_forward_one_backward(1, 2);
  fused.ranks[0][1].fused_with_next = true;
  EXPECT_EQ(difference(one_forward_one_backward(1, 2), fused),
            "action 1 of rank 0 is 0B0 in mine and 0B0 + next in yours");
}

TEST(Difference, NamesACopyToTheHost) {
  const Schedule plain = fill_drain(1, 2);
  const Schedule offloaded =
      with_offload(plain, [](int, int i) { return i == 1; });
  EXPECT_EQ(difference(plain, offloaded),
            "action 2 of rank 0 is 0B1 in mine and 0O1 in yours");
}

TEST(Difference, NamesAMissingAction) {
  const Schedule whole = fill_drain(2, 2);
  const Schedule forwards = select(whole, [](const Action& action) {
    return action.kind == ActionKind::kForward;
  });
  EXPECT_EQ(difference(whole, forwards),
            "action 2 of rank 0 is 0B1 in mine and missing in yours");
}

}  // namespace
}  // namespace gpipe
