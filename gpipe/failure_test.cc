#include "gpipe/failure.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "gpipe/testing/errors.h"

namespace gpipe {
namespace {

using testing::error_of;

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
  EXPECT_EQ(at_partition(2, Phase::kGather).place(),
            "partition 2, all micro-batches, gather");
  EXPECT_EQ(at_partition(Failure::kAll, Phase::kGradients).place(),
            "all partitions, all micro-batches, gradients");
}

TEST(Failure, TextHasWhatTheExceptionSays) {
  Failure failure = at_partition(0, Phase::kScatter);
  EXPECT_EQ(failure.to_string(), "partition 0, all micro-batches, scatter");
  failure.what = "no memory";
  EXPECT_EQ(failure.to_string(),
            "partition 0, all micro-batches, scatter: no memory");
}

// Returns the failure of an exception at in_layer(); `after` becomes the
// exception as the caller sees it.
template <typename Throw>
Failure caught(Throw thrown, std::string& after) {
  Failure failure;
  after = error_of([&] {
    try {
      thrown();
    } catch (...) {
      failure = caught_at(in_layer());
      throw;
    }
  });
  EXPECT_EQ(failure.place(), in_layer().place());
  return failure;
}

TEST(Failure, AddsThePlaceToATorchErrorOfTheSameType) {
  std::string after;
  const Failure failure =
      caught([] { TORCH_CHECK_VALUE(false, "too few rows"); }, after);
  EXPECT_EQ(failure.what, "too few rows");
  EXPECT_EQ(after,
            "c10::ValueError: too few rows (in partition 1, micro-batch 3, "
            "recompute, layer '5')");
}

TEST(Failure, LeavesOtherExceptionsAsTheyAre) {
  std::string after;
  Failure failure = caught([] { throw std::out_of_range("no row 7"); }, after);
  EXPECT_EQ(failure.what, "no row 7");
  EXPECT_EQ(after, "std::out_of_range: no row 7");
  failure = caught([] { throw 42; }, after);
  EXPECT_EQ(failure.what, "");
  EXPECT_EQ(after, "not a std::exception");
}

}  // namespace
}  // namespace gpipe
