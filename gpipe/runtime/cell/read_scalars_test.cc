#include "gpipe/runtime/cell/read_scalars.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ReadScalarsTest : public SimulatedTest {};

at::Tensor scalar(double value, at::ScalarType type, c10::Device device) {
  return at::scalar_tensor(value, at::TensorOptions(type)).to(device);
}

TEST_F(ReadScalarsTest, WaitsOncePerDevice) {
  const std::vector<at::Tensor> scalars = {
      scalar(0.5, at::kFloat, hpu(2)), scalar(3, at::kBFloat16, hpu(0)),
      scalar(1e-300, at::kDouble, hpu(2)), scalar(-7, at::kFloat, hpu(0)),
      scalar(4, at::kFloat, hpu(2))};
  const auto before = host_waits();
  EXPECT_THAT(internal::read_scalars(scalars),
              ElementsAre(0.5, 3, 1e-300, -7, 4));
  EXPECT_EQ(host_waits(), before + 2);
}

TEST_F(ReadScalarsTest, OnTheHostNothingIsWaitedFor) {
  const auto before = host_waits();
  EXPECT_THAT(
      internal::read_scalars({scalar(2, at::kFloat, c10::Device(c10::kCPU))}),
      ElementsAre(2));
  EXPECT_THAT(internal::read_scalars({}), IsEmpty());
  EXPECT_EQ(host_waits(), before);
}

}  // namespace
}  // namespace gpipe::simulated
