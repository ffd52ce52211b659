#include "gpipe/runtime/run/run_ahead.h"

#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using internal::RunAhead;

class RunAheadTest : public SimulatedTest {};

TEST_F(RunAheadTest, TheHostWaitsForTheSecondActionBefore) {
  const c10::DeviceGuard on_device(hpu(1));
  const c10::Stream stream = default_stream(1);
  RunAhead ahead(hpu(1));
  const auto before = host_waits();
  {
    Gate gate(stream);
    for (std::size_t k = 0; k < RunAhead::kActions; ++k) {
      ahead.wait();  // does not block
      ahead.end_action();
    }
    EXPECT_EQ(host_waits(), before);
    EXPECT_FALSE(stream.query());
  }
  ahead.wait();
  EXPECT_EQ(host_waits(), before + 1);
  for (int k = 0; k < 5; ++k) {
    ahead.end_action();
    ahead.wait();
  }
  EXPECT_EQ(host_waits(), before + 6);
}

TEST_F(RunAheadTest, ACpuIsNeverWaitedFor) {
  RunAhead ahead{c10::Device(c10::kCPU)};
  const auto before = host_waits();
  for (int k = 0; k < 5; ++k) {
    ahead.wait();
    ahead.end_action();
  }
  EXPECT_EQ(host_waits(), before);
}

}  // namespace
}  // namespace gpipe::simulated
