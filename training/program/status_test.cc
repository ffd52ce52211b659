#include "training/program/status.h"

#include <gtest/gtest.h>

namespace gpipe::train_program {
namespace {

TEST(StatusTest, TellsWhereItIsHowFastAndForHowLong) {
  Progress progress;
  progress.first = 20;
  progress.step = 120;
  progress.steps = 220;
  progress.epoch = 1.25;
  progress.loss = 2.3024;
  progress.rows_per_second = 85.34;
  progress.rows_name = "images";
  progress.seconds = 65;
  EXPECT_EQ(to_text(progress),
            "[##########..........] step 120/220 | epoch 1.25 | loss 2.302 | "
            "85.3 images/s | 00:01:05 | 00:01:05 left");
}

TEST(StatusTest, WithoutAStepNothingIsJudged) {
  Progress progress;
  progress.steps = 10;
  progress.rows_name = "images";
  EXPECT_EQ(to_text(progress),
            "[....................] step 0/10 | epoch 0.00 | loss 0 | 0.0 "
            "images/s | 00:00:00");
}

}  // namespace
}  // namespace gpipe::train_program
