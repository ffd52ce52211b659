#include "balancing/machines.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <string>

#include "gpipe/testing/thrown.h"

namespace gpipe::balancing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string machines_error(const std::string& members) {
  return testing::thrown<c10::ValueError>([&] {
    machines_from_json("{\"format\": \"gpipe machines 1\"" + members + "}",
                       "it");
  });
}

TEST(MachinesTest, HaveTheLinkOfEachPair) {
  const Machines machines = machines_from_json(R"(
    {"format": "gpipe machines 1",
     "hosts": [
       {"name": "a", "count": 2, "latency_seconds": 5e-6, "bandwidth_gb": 300,
        "devices": [{"type": "cuda", "count": 2, "speed": 2.5,
                     "memory_gib": 80, "host_bandwidth_gb": 25}]},
       {"name": "b", "devices": [{"type": "cpu"}]}],
     "latency_seconds": 2e-5, "bandwidth_gb": 25,
     "links": [{"hosts": ["b", "a"], "bandwidth_gb": 12}]})",
                                               "it");
  ASSERT_THAT(machines.devices, SizeIs(5));
  EXPECT_EQ(machines.devices[1].device(), torch::Device(torch::kCUDA, 1));
  EXPECT_EQ(machines.devices[2].device(), torch::Device(torch::kCUDA, 0));
  EXPECT_EQ(machines.devices[4].device(), torch::Device(torch::kCPU));
  EXPECT_EQ(machines.devices[0].speed(), 2.5);
  // Without the workspaces of cuBLAS.
  EXPECT_EQ(machines.devices[0].memory_bytes(),
            80.0 * (1 << 30) - 2.0 * (32 << 20));
  EXPECT_EQ(machines.devices[0].host_bandwidth(), 25e9);
  EXPECT_TRUE(std::isinf(machines.devices[4].memory_bytes()));
  ASSERT_THAT(machines.links, SizeIs(25));
  const auto link = [&](int from, int to) {
    return machines.links[static_cast<std::size_t>(from * 5 + to)];
  };
  EXPECT_EQ(link(0, 1).latency, 5e-6);
  EXPECT_EQ(link(0, 1).bandwidth, 300e9);
  EXPECT_EQ(link(1, 2).latency, 2e-5);
  EXPECT_EQ(link(1, 2).bandwidth, 25e9);
  EXPECT_EQ(link(3, 4).latency, 0);
  EXPECT_EQ(link(4, 0).bandwidth, 12e9);
}

TEST(MachinesTest, NameTheirErrors) {
  EXPECT_THAT(machines_error(""), HasSubstr("it: there are no devices"));
  EXPECT_THAT(machines_error(R"(, "host": [])"),
              HasSubstr("there is no \"host\" in a description of machines; "
                        "known here are format,"));
  const auto device = [](const std::string& members) {
    return machines_error(R"(, "hosts": [{"name": "a", "devices": [)" +
                          members + "]}]");
  };
  EXPECT_EQ(device("{}"), "no error");
  EXPECT_THAT(device(R"({"type": "abacus"})"),
              HasSubstr("it: host 0: device 0: \"type\" is \"abacus\""));
  EXPECT_THAT(device(R"({"type": "cuda", "sped": 2})"),
              HasSubstr("there is no \"sped\" in a description of machines; "
                        "known here are type, speed, memory_gib, "
                        "host_bandwidth_gb, count"));
  EXPECT_THAT(device(R"({"speed": 0})"), HasSubstr("should be a number above"));
  EXPECT_THAT(device(R"({"count": 5000})"), HasSubstr("\"count\" is 5000"));
  EXPECT_THAT(machines_error(R"(, "links": [{"hosts": ["a", "b"]}])"),
              HasSubstr("it: link 0: there is no host \"a\""));
  EXPECT_THAT(machines_error(R"(, "hosts": [{"name": "a"}, {"name": "a"}])"),
              HasSubstr("two hosts are called 'a'"));
}

}  // namespace
}  // namespace gpipe::balancing
