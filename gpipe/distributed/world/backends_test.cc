#include "gpipe/distributed/world/backends.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>

namespace gpipe::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Names = std::map<c10::DeviceType, std::string>;

// A backend that is never used.
class Hccl final : public DeviceTransportBackend {
 public:
  std::string name() const override { return "hccl"; }
  Offer offer(const c10::Device&) const override { return {}; }
  c10::intrusive_ptr<c10d::Backend> connect(
      c10::intrusive_ptr<c10d::Store>, int, int, const c10::Device&,
      std::chrono::milliseconds) const override {
    return nullptr;
  }
};

TEST(BackendsTest, OneNameIsTheOneOfTheCpu) {
  EXPECT_EQ(parse_backends("gloo"), (Names{{c10::kCPU, "gloo"}}));
  EXPECT_EQ(parse_backends("cpu:gloo"), (Names{{c10::kCPU, "gloo"}}));
  EXPECT_FALSE(names_direct_transfers("gloo"));
  EXPECT_EQ(all_backends(), "gloo");
}

TEST(BackendsTest, EachTypeOfDeviceHasItsOwn) {
  register_backend(c10::kHPU, std::make_unique<Hccl>());
  EXPECT_EQ(parse_backends("cpu:gloo,hpu:hccl"),
            (Names{{c10::kCPU, "gloo"}, {c10::kHPU, "hccl"}}));
  EXPECT_EQ(backend_of(c10::kHPU)->name(), "hccl");
  EXPECT_EQ(all_backends(), "cpu:gloo,hpu:hccl");
  EXPECT_EQ(backend_of(c10::kCUDA), nullptr);
  EXPECT_TRUE(names_direct_transfers("cpu:gloo,hpu:hccl"));
  EXPECT_TRUE(names_direct_transfers("hpu:hccl,cpu:gloo"));
  EXPECT_FALSE(names_direct_transfers("cpu:gloo,hpu:gloo"));
}

TEST(BackendsTest, OneNameForAcceleratorsLeavesTheCpuToGloo) {
  register_backend(c10::kHPU, std::make_unique<Hccl>());
  EXPECT_EQ(parse_backends("hccl"), parse_backends("cpu:gloo,hpu:hccl"));
}

TEST(BackendsTest, WhatThereIsNotIsRefusedWithWhatThereIs) {
  register_backend(c10::kHPU, std::make_unique<Hccl>());
  const auto refused = [](const std::string& text, const std::string& why) {
    EXPECT_THAT([&] { parse_backends(text); },
                ThrowsMessage<c10::ValueError>(HasSubstr(
                    "WorldOptions::backend is '" + text + "', but " + why +
                    "; this program has 'gloo', and 'hccl' between devices of "
                    "type hpu, so give 'gloo' or 'cpu:gloo,hpu:hccl'")))
        << text;
  };
  refused("mpi", "'mpi' cannot serve all devices");
  refused("cpu:mpi", "there is no 'mpi' for devices of type cpu");
  refused("cpu:gloo,cuda:nccl", "there is no 'nccl' for devices of type cuda");
  refused("cpu:gloo,gpu:nccl", "'gpu:nccl' names no type of device");
  refused("cpu:gloo,hpu:0:hccl",
          "there is no '0:hccl' for devices of type hpu");
  refused("cpu:gloo,cpu:gloo", "it names two backends for devices of type cpu");
  refused("hpu:hccl", "it names none for the CPU, on which ranks agree");
  refused("", "it names none for the CPU, on which ranks agree");
}

}  // namespace
}  // namespace gpipe::internal
