#include "gpipe/base/instruments/fail_nth.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace gpipe::instruments {
namespace {

TEST(FailNth, FailsOnceAndCountsAll) {
  FailNth failing;
  failing.pass();  // nothing is armed
  failing.arm(2, [] { throw std::runtime_error("third"); });
  failing.pass();
  failing.pass();
  EXPECT_THROW(failing.pass(), std::runtime_error);
  failing.pass();
  EXPECT_EQ(failing.disarm(), 4);
  failing.pass();

  failing.arm(0, [] { throw std::runtime_error("first"); });
  const auto fail = failing.take();  // another thread may call it
  ASSERT_TRUE(fail);
  EXPECT_FALSE(failing.take());
  EXPECT_EQ(failing.disarm(), 2);
}

}  // namespace
}  // namespace gpipe::instruments
