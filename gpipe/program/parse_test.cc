#include "gpipe/program/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace gpipe {
namespace {

TEST(ParseDevicesTest, ReadsAList) {
  EXPECT_TRUE(parse_devices("").empty());
  EXPECT_EQ(parse_devices("cpu,cpu").size(), 2);
  EXPECT_EQ(first_device({c10::Device("cpu")}), c10::Device("cpu"));
}

TEST(ParseDevicesTest, NamesTheDevicesThatThereAre) {
  for (const std::string text : {"cpu,gpu", "cuda:77", "cpu:0:1"}) {
    EXPECT_THAT([&] { parse_devices(text); },
                ::testing::ThrowsMessage<std::invalid_argument>(
                    ::testing::HasSubstr("it has cpu")))
        << text;
    EXPECT_THROW(with_value_error([&] { return parse_devices(text); }),
                 c10::ValueError);
  }
}

}  // namespace
}  // namespace gpipe
