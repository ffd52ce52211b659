#include "gpipe/runtime/cell/read_scalars.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

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

TEST_F(ReadScalarsTest, KeepsDtypesAndValuesOfAllTypesWithOneCopy) {
  constexpr int64_t kLarge = (int64_t{1} << 62) + 1;  // no double
  const at::Tensor large =
      at::full({1}, kLarge, at::TensorOptions(at::kLong)).to(hpu(1));
  const std::vector<at::Tensor> scalars = {
      scalar(0.25, at::kHalf, hpu(1)), large,
      scalar(1e-300, at::kDouble, hpu(1)), scalar(-3, at::kInt, hpu(1)),
      scalar(0.5, at::kHalf, hpu(1))};
  synchronize();
  const Counts before = counts();
  const auto values = internal::scalars_on_host(scalars);
  const Counts taken = counts() - before;
  EXPECT_EQ(taken.host_waits, 1);
  // A stack for each of four dtypes, the half and int values as 64 bits, the
  // concatenation, and the copy.
  EXPECT_EQ(taken.launches, 4 + 2 + 1 + 1);
  for (std::size_t k = 0; k < values.size(); ++k) {
    EXPECT_EQ(values[k].scalar_type(), scalars[k].scalar_type());
    EXPECT_TRUE(values[k].is_cpu());
    EXPECT_EQ(values[k].dim(), 0);
  }
  EXPECT_EQ(values[0].item<double>(), 0.25);
  EXPECT_EQ(values[1].item<int64_t>(), kLarge);
  EXPECT_EQ(values[2].item<double>(), 1e-300);
  EXPECT_EQ(values[3].item<int64_t>(), -3);
  EXPECT_EQ(values[4].item<double>(), 0.5);
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
