#include "gpipe/runtime/device/test_hooks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
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

TEST(Ordering, HasATextWithFileAndLine) {
  const Site site{"folder/file.cc", 21};
  EXPECT_EQ(to_string(Ordering::kEvent, site), "event at folder/file.cc:21");
  EXPECT_EQ(to_string(Ordering::kWait, site), "wait at folder/file.cc:21");
  EXPECT_EQ(to_string(Ordering::kRecord, site), "record at folder/file.cc:21");
  EXPECT_EQ(to_string(Ordering::kScope, site), "scope at folder/file.cc:21");
}

int line_of_caller(Site site = Site::here()) { return site.line; }

TEST(Ordering, SiteHereIsTheLineOfTheCaller) {
  const int line = __LINE__;
  EXPECT_EQ(line_of_caller(), line + 1);
}

TEST(Ordering, IsLeftOutOnlyIfTheFunctionSaysSo) {
  const Site one{"file.cc", 1}, two{"file.cc", 2};
  EXPECT_FALSE(left_out(Ordering::kWait, one));
  set_leave_out([](Ordering ordering, const Site& site) {
    return ordering == Ordering::kWait && site.line == 1;
  });
  EXPECT_TRUE(left_out(Ordering::kWait, one));
  EXPECT_FALSE(left_out(Ordering::kWait, two));
  EXPECT_FALSE(left_out(Ordering::kEvent, one));
  set_leave_out(nullptr);
  EXPECT_FALSE(left_out(Ordering::kWait, one));
}

}  // namespace
}  // namespace gpipe::internal
