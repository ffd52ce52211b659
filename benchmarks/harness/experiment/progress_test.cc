#include "benchmarks/harness/experiment/progress.h"

#include <gtest/gtest.h>

namespace gpipe::benchmarks {
namespace {

TEST(ProgressTest, LineTellsShareRateAndTimeLeft) {
  EXPECT_EQ(progress_line("pipeline-2", 65, 2, 3, 0.5, 21.34),
            "pipeline-2 | epoch 2/3 (50%) | 21.3 samples/s | 00:01:05 | "
            "00:01:05 left");
}

TEST(ProgressTest, LineWithoutAnythingDoneJudgesNoTime) {
  EXPECT_EQ(progress_line("a", 0, 1, 3, 0, 0),
            "a | epoch 1/3 (0%) | 0.0 samples/s | 00:00:00");
}

}  // namespace
}  // namespace gpipe::benchmarks
