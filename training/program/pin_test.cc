// Tests what the loading thread prepares for accelerators. Runs on the
// simulated accelerators only.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "gpipe/testing/simulated/memory.h"
#include "gpipe/testing/simulated/test_fixture.h"
#include "training/program/step.h"

namespace gpipe::train_program {
namespace {

using simulated::counts;
using simulated::hpu;

class PinTest : public simulated::SimulatedTest {};

StepData two_parts() {
  StepData data;
  data.split = true;
  data.parts = {{at::full({8, 4}, 1.), at::full({8}, 2.)},
                {at::full({8, 4}, 3.), at::Tensor()}};
  return data;
}

TEST_F(PinTest, CopiesToADeviceDoNotWaitForItsEarlierWork) {
  const int64_t bytes = simulated::pinned_bytes_made();
  StepData data = two_parts();
  pin(data, hpu(1));
  EXPECT_EQ(simulated::pinned_bytes_made() - bytes, 8 * 4 * 4 * 2 + 8 * 4);
  EXPECT_FALSE(data.parts[1].target.defined());
  simulated::Gate gate(simulated::default_stream(1));
  const auto before = counts();
  const at::Tensor there =
      data.parts[1].input.to(hpu(1), /*non_blocking=*/true);
  EXPECT_EQ((counts() - before).host_waits, 0);
  EXPECT_EQ((counts() - before).launches, 1);
  data = StepData();  // the copy has not run yet
  gate.open();
  EXPECT_TRUE(there.cpu().equal(at::full({8, 4}, 3.)));
}

TEST_F(PinTest, OnACpuNothingIsCopied) {
  StepData data = two_parts();
  const at::Tensor input = data.parts[0].input;
  pin(data, c10::Device(c10::kCPU));
  EXPECT_TRUE(data.parts[0].input.is_same(input));
}

}  // namespace
}  // namespace gpipe::train_program
