#include <gtest/gtest.h>

#include "weights/fuzz_driver.h"
#include "weights/testing/fuzz_checks.h"

namespace gpipe {
namespace {

// Of the target that is linked in, which ends the process if something is
// wrong. A million of them: fuzz_main.cc.
TEST(FuzzTest, TwentyThousandBrokenInputsAreReadOrRefused) {
  const FuzzResult result = run_fuzz_target(/*runs=*/20000, /*seed=*/1);
  EXPECT_EQ(result.runs, 20000 + static_cast<int64_t>(fuzz_seeds().size()));
  // Both ways have been tried.
  EXPECT_GT(testing::reader_counts().read, 500);
  EXPECT_GT(testing::reader_counts().refused, 500);
}

TEST(FuzzTest, TheSameSeedMakesTheSameInputs) {
  Mutator one(fuzz_seeds(), 7);
  Mutator two(fuzz_seeds(), 7);
  Mutator other(fuzz_seeds(), 8);
  int different = 0;
  for (int k = 0; k < 100; ++k) {
    const std::string input = one.next();
    EXPECT_EQ(input, two.next());
    different += input != other.next() ? 1 : 0;
  }
  EXPECT_GT(different, 90);
}

}  // namespace
}  // namespace gpipe
