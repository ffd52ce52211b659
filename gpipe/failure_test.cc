#include "gpipe/failure.h"

#include <gtest/gtest.h>

namespace gpipe {
namespace {

Failure in_layer() {
  Failure failure;
  failure.partition = 1;
  failure.microbatch = 3;
  failure.phase = Phase::kRecomputing;
  failure.layer = "5";
  return failure;
}

TEST(Failure, PlaceNamesPartitionMicrobatchPhaseAndLayer) {
  EXPECT_EQ(in_layer().place(),
            "partition 1, micro-batch 3, recompute, layer '5'");
  EXPECT_EQ(Failure().place(), "partition 0, micro-batch 0, forward");
}

TEST(Failure, TextHasWhatTheExceptionSays) {
  Failure failure = in_layer();
  EXPECT_EQ(failure.to_string(), failure.place());
  failure.what = "no memory";
  EXPECT_EQ(failure.to_string(), failure.place() + ": no memory");
}

}  // namespace
}  // namespace gpipe
