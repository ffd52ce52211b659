#include "gpipe/distributed/channel/message.h"

#include <gtest/gtest.h>

#include <utility>

#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using testing::error_of;

TEST(MessageId, SaysInWordsWhatItIs) {
  MessageId id = {7, 1, Direction::kForward, 1, 2, -1, 3};
  EXPECT_EQ(id.to_string(),
            "the output of stage 1 for micro-batch 3 of step 7, to stage 2");
  id.skip = 4;
  EXPECT_EQ(id.to_string(),
            "skip tensor 4 for micro-batch 3 of step 7, from stage 1 to "
            "stage 2");
  id.direction = Direction::kBackward;
  std::swap(id.from_stage, id.to_stage);
  EXPECT_EQ(id.to_string(),
            "the gradient of skip tensor 4 for micro-batch 3 of step 7, from "
            "stage 2 to stage 1");
  id.skip = -1;
  EXPECT_EQ(id.to_string(),
            "the gradient of stage 1's output for micro-batch 3 of step 7, "
            "from stage 2");
}

TEST(MessageId, IsAnotherIfAnyFieldDiffers) {
  const MessageId id = {7, 1, Direction::kForward, 1, 2, -1, 3};
  EXPECT_TRUE(id == MessageId(id));
  for (int field = 0; field < 7; ++field) {
    MessageId other = id;
    if (field == 0) other.step = 8;
    if (field == 1) other.schedule = 2;
    if (field == 2) other.direction = Direction::kBackward;
    if (field == 3) other.from_stage = 0;
    if (field == 4) other.to_stage = 3;
    if (field == 5) other.skip = 0;
    if (field == 6) other.microbatch = 4;
    EXPECT_FALSE(id == other) << field;
    EXPECT_NE(error_of([&] { check_expected(other, id); }), "") << field;
  }
}

TEST(CheckExpected, NamesTheFirstThingThatDiffers) {
  const MessageId id = {7, 0x12ab, Direction::kForward, 1, 2, -1, 3};
  check_expected(id, id);
  MessageId other = id;
  other.microbatch = 4;
  EXPECT_EQ(error_of([&] { check_expected(other, id); }),
            "c10::Error: received the output of stage 1 for micro-batch 4 of "
            "step 7, to stage 2, but expected the output of stage 1 for "
            "micro-batch 3 of step 7, to stage 2; all ranks must run the same "
            "actions in the same order");
  other.schedule = 0x34;
  EXPECT_EQ(error_of([&] { check_expected(other, id); }),
            "c10::Error: the ranks run different schedules: received the "
            "output of stage 1 for micro-batch 4 of step 7, to stage 2 of a "
            "schedule with the checksum 0x34, but this rank's has 0x12ab; give "
            "all ranks the same schedule");
  other.step = 9;
  EXPECT_EQ(error_of([&] { check_expected(other, id); }),
            "c10::Error: received a message of step 9 (the output of stage 1 "
            "for micro-batch 4 of step 9, to stage 2), but this rank is in "
            "step 7 and expected the output of stage 1 for micro-batch 3 of "
            "step 7, to stage 2; all ranks must make the same calls in the "
            "same order");
}

}  // namespace
}  // namespace gpipe::internal
