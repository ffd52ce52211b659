#include "train_program/offload_option.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>

namespace gpipe::train_program {
namespace {

std::string with(const std::string& offload, bool accelerators) {
  return to_csv(with_offload_option(one_forward_one_backward(2, 4), offload,
                                    accelerators));
}

TEST(OffloadOptionTest, NoneAndAutoOnACpuLeaveTheScheduleAsItIs) {
  const std::string plain = to_csv(one_forward_one_backward(2, 4));
  EXPECT_EQ(with("none", true), plain);
  EXPECT_EQ(with("none", false), plain);
  EXPECT_EQ(with("auto", false), plain);
}

TEST(OffloadOptionTest, ANumberOffloadsTheCellsThatAreAsDistant) {
  const Schedule plain = one_forward_one_backward(2, 4);
  for (const int distance : {0, 1, 2, 3}) {
    EXPECT_EQ(with(std::to_string(distance), false),
              to_csv(with_offload(plain, distant_cells(plain, distance))));
  }
  EXPECT_EQ(with("auto", true), with("2", true));
  // Rank 0 of 1F1B has two other actions between a forward and its backward,
  // once it is in its steady state.
  EXPECT_NE(with("1", true).find("0O1"), std::string::npos) << with("1", true);
  EXPECT_EQ(with("99", true), to_csv(plain));
}

TEST(OffloadOptionTest, AnythingElseIsRefused) {
  for (const char* wrong : {"", "-1", "2x", "all", "99999999999"}) {
    try {
      with(wrong, true);
      ADD_FAILURE() << wrong;
    } catch (const c10::ValueError& error) {
      EXPECT_EQ(std::string(error.what_without_backtrace()),
                "--offload=" + std::string(wrong) +
                    ": must be none, auto, or a number of actions >= 0");
    }
  }
}

}  // namespace
}  // namespace gpipe::train_program
