#include "gpipe/runtime/run/caught.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using testing::error_of;

TEST(Caught, WorkOnAWholeMiniBatchBelongsToAllMicrobatches) {
  EXPECT_EQ(at_partition(2, Phase::kGather).place(),
            "partition 2, all micro-batches, gather");
  EXPECT_EQ(at_partition(Failure::kAll, Phase::kGradients).place(),
            "all partitions, all micro-batches, gradients");
}

Failure in_layer() {
  Failure failure;
  failure.partition = 1;
  failure.microbatch = 3;
  failure.phase = Phase::kRecomputing;
  failure.layer = "5";
  return failure;
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

TEST(Caught, AddsThePlaceToATorchErrorOfTheSameType) {
  std::string after;
  const Failure failure =
      caught([] { TORCH_CHECK_VALUE(false, "too few rows"); }, after);
  EXPECT_EQ(failure.what, "too few rows");
  EXPECT_EQ(after,
            "c10::ValueError: too few rows (in partition 1, micro-batch 3, "
            "recompute, layer '5')");
}

TEST(Caught, LeavesOtherExceptionsAsTheyAre) {
  std::string after;
  Failure failure = caught([] { throw std::out_of_range("no row 7"); }, after);
  EXPECT_EQ(failure.what, "no row 7");
  EXPECT_EQ(after, "std::out_of_range: no row 7");
  failure = caught([] { throw 42; }, after);
  EXPECT_EQ(failure.what, "");
  EXPECT_EQ(after, "not a std::exception");
}

}  // namespace
}  // namespace gpipe::internal
