#include "gpipe/runtime/device/fault_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> calls;

TEST(FaultPoint, CallsTheHookWithTheCell) {
  calls.clear();
  fault_point("before");
  set_fault_hook([](const char* site, int64_t partition, int64_t microbatch) {
    calls.push_back(std::string(site) + " " + std::to_string(partition) + " " +
                    std::to_string(microbatch));
  });
  fault_point("copy-in", 2, 5);
  fault_point("gather", 1);
  fault_point("accumulate");
  set_fault_hook(nullptr);
  fault_point("after");
  EXPECT_THAT(calls,
              ElementsAre("copy-in 2 5", "gather 1 -1", "accumulate -1 -1"));
}

TEST(FaultPoint, ThrowsWhatTheHookThrows) {
  set_fault_hook([](const char* site, int64_t, int64_t) {
    throw std::out_of_range(site);
  });
  EXPECT_THROW(fault_point("loss"), std::out_of_range);
  set_fault_hook(nullptr);
  EXPECT_NO_THROW(fault_point("loss"));
}

}  // namespace
}  // namespace gpipe::internal
