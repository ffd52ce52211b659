#include "gpipe/runtime/device/ordering.h"

#include <gtest/gtest.h>

namespace gpipe::internal {
namespace {

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
