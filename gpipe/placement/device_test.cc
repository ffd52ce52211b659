#include "gpipe/placement/device.h"

#include <gtest/gtest.h>

#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"

namespace gpipe {
namespace {

using c10::Device;
using placement::existing_device;
using testing::device;
using testing::error_of;

TEST(Device, FromTextAndFromADevice) {
  EXPECT_EQ(get_device("cpu"), Device(c10::kCPU));
  EXPECT_EQ(get_device("meta"), Device(c10::kMeta));
  EXPECT_EQ(get_device("meta:3"), Device(c10::kMeta, 3));
  EXPECT_EQ(get_device("cuda"), Device(c10::kCUDA));
  EXPECT_EQ(get_device(Device(c10::kXPU)), Device(c10::kXPU));
  EXPECT_EQ(get_device(device(1).str()), device(1));
}

TEST(Device, UnknownTypesAreAnsweredWithTheNearest) {
  const std::string error = error_of([] { get_device("gpu:1"); });
  EXPECT_EQ(error.rfind("c10::ValueError: unknown type of device 'gpu' in "
                        "'gpu:1'; the nearest that LibTorch knows are 'cpu', "
                        "'xpu' and 'hpu'; this process has devices of 'cpu'",
                        0),
            0u)
      << error;
  const std::string here =
      c10::DeviceTypeName(device().type(), /*lower_case=*/true);
  EXPECT_NE(error.find("'" + here + "'", error.find("devices of")),
            std::string::npos);
  EXPECT_EQ(error_of([] { get_device("Cuda"); })
                .rfind("c10::ValueError: unknown type of device 'Cuda'; the "
                       "nearest that LibTorch knows are 'cuda', 'cpu' and "
                       "'fpga'; ",
                       0),
            0u);
}

TEST(Device, IndicesAreNumbers) {
  for (const std::string index : {"", "x", "-1", "1x", "128", "99999999999"}) {
    EXPECT_EQ(error_of([&] { get_device("cuda:" + index); }),
              "c10::ValueError: the device 'cuda:" + index +
                  "' has the index '" + index +
                  "', which must be a number from 0 to 127, as in 'cuda:0'");
  }
}

TEST(Device, IndicesBeyondTheLast) {
  EXPECT_EQ(error_of([] { get_device("cpu:1"); }),
            "c10::ValueError: there is no device cpu:1: the last one of this "
            "type is cpu:0");
  if (device().is_hpu()) {
    EXPECT_EQ(error_of([] { get_device("hpu:4"); }),
              "c10::ValueError: there is no device hpu:4: the last one of this "
              "type is hpu:3");
  }
}

TEST(Device, ExistingOnesAreWhatTensorsSay) {
  EXPECT_EQ(existing_device(Device(c10::kCPU, 0)), Device(c10::kCPU));
  EXPECT_EQ(existing_device(Device(c10::kMeta)), Device(c10::kMeta));
  EXPECT_EQ(existing_device(device(1)), device(1));
  if (!device().is_cpu()) {
    EXPECT_EQ(existing_device(Device(device().type())).index(), 0);
  }
  EXPECT_EQ(error_of([] { existing_device(Device(c10::kVulkan)); }),
            "c10::ValueError: there is no device vulkan: this process has none "
            "of its type");
}

}  // namespace
}  // namespace gpipe
