// Tests of check_near_full() on simulated accelerators, whose memory can be
// limited.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "gpipe/testing/devices.h"
#include "gpipe/testing/simulated/simulated.h"
#include "tools/gpu_checks.h"

namespace gpipe::tools {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class CheckNearFull : public ::testing::Test {
 public:
  CheckNearFull() { limit(int64_t{64} << 20); }
  ~CheckNearFull() override { limit(std::nullopt); }

 private:
  static void limit(std::optional<int64_t> bytes) {
    for (int64_t k = 0; k < 2; ++k) simulated::set_memory_limit(k, bytes);
  }
};

// The simulated allocator counts no retries, since it has no cache to return.
TEST_F(CheckNearFull, ComputesEqualBitsInMemoryThatIsNearlyFull) {
  const CheckResult result = check_near_full(testing::devices(2), 64, 128);
  EXPECT_EQ(result.outcome, CheckOutcome::kNotPossible) << result.text;
  EXPECT_THAT(
      result.text,
      AllOf(HasSubstr("2 times the needed memory is free: 0 retries of the "
                      "allocator, largest difference 0\n"),
            EndsWith("no completed step made the allocator retry")));
}

}  // namespace
}  // namespace gpipe::tools
