#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/device/copier.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/simulated/pinned.h"
#include "gpipe/testing/simulated/simulated.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using at::Tensor;
using gpipe::testing::error_of;
using internal::Copier;
using internal::Event;
using internal::HostBuffers;
using ::testing::StartsWith;

Tensor bytes(int64_t size, int64_t first) {
  return at::arange(first, first + size, at::TensorOptions(at::kByte));
}

// Returns a tensor over all bytes of `storage`.
Tensor over(const c10::Storage& storage) {
  Tensor tensor = at::empty({0}, at::TensorOptions(at::kByte).device(hpu(0)));
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(
      {static_cast<int64_t>(storage.nbytes())});
  return tensor;
}

class CopierToHostTest : public SimulatedTest {};

TEST_F(CopierToHostTest, BringsBackTheBytesOfAllStorages) {
  Copier copier(hpu(0));
  std::vector<c10::Storage> storages;
  for (const int64_t size : {1, 255, 256, 3}) {
    storages.push_back(bytes(size, size % 7).to(hpu(0)).storage());
  }
  const Copier::OnHost on_host = copier.to_host(std::move(storages), nullptr);
  Event ready;
  const auto back = copier.from_host(on_host, &ready, nullptr);
  ready.wait(hpu(0));
  ASSERT_EQ(back.size(), 4u);
  std::size_t k = 0;
  for (const int64_t size : {1, 255, 256, 3}) {
    EXPECT_TRUE(over(back[k++]).cpu().equal(bytes(size, size % 7))) << size;
  }
}

TEST_F(CopierToHostTest, CopiesAfterTheWorkOfTheStreamAndReleasesTheDevice) {
  Copier copier(hpu(0));
  synchronize();
  const auto before = bytes_in_use(0);
  Tensor tensor = bytes(100, 0).to(hpu(0));
  Gate gate(default_stream(0));
  tensor.add_(5);
  const auto waits = host_waits();
  Copier::OnHost on_host = copier.to_host({tensor.storage()}, nullptr);
  EXPECT_EQ(host_waits(), waits);  // the host goes on
  tensor.reset();
  EXPECT_EQ(bytes_in_use(0), before + 100);  // the copy still reads it
  gate.open();
  copier.finish();
  EXPECT_EQ(bytes_in_use(0), before);
  Event ready;
  const auto back = copier.from_host(on_host, &ready, nullptr);
  EXPECT_EQ(bytes_in_use(0), before + 100);
  ready.wait(hpu(0));
  EXPECT_TRUE(over(back[0]).cpu().equal(bytes(100, 5)));
}

TEST_F(CopierToHostTest, HasAStreamPerDirection) {
  Copier copier(hpu(0));
  take_trace();
  std::set<c10::StreamId> to_host, from_host;
  for (int k = 0; k < 3; ++k) {
    const auto on_host =
        copier.to_host({bytes(8, 0).to(hpu(0)).storage()}, nullptr);
    Event ready;
    const auto back = copier.from_host(on_host, &ready, nullptr);
    ready.wait(hpu(0));
  }
  for (const Given& each : take_trace()) {
    const bool is_default = each.stream == default_stream(0);
    if (each.name == "a copy to the host") to_host.insert(each.stream.id());
    if (each.name == "a copy from the host" && !is_default) {
      from_host.insert(each.stream.id());
    }
  }
  EXPECT_EQ(to_host.size(), 1u);
  EXPECT_EQ(from_host.size(), 1u);
  EXPECT_NE(*to_host.begin(), *from_host.begin());
}

// As the links of a rank in the simulator: a copy back waits for the copy to
// the host of its own cell, not for those of other cells.
TEST_F(CopierToHostTest, ACopyBackDoesNotWaitForOtherCopiesToTheHost) {
  Copier copier(hpu(0));
  const auto first =
      copier.to_host({bytes(100, 1).to(hpu(0)).storage()}, nullptr);
  copier.finish();
  Tensor other = bytes(100, 2).to(hpu(0));
  synchronize();
  Gate gate(default_stream(0));
  const auto second = copier.to_host({other.storage()}, nullptr);
  const auto waits = host_waits();
  {
    const c10::StreamGuard beside(new_stream(0));
    Event ready;
    const auto back = copier.from_host(first, &ready, nullptr);
    EXPECT_EQ(host_waits(), waits);
    ready.wait(hpu(0));
    EXPECT_TRUE(over(back[0]).cpu().equal(bytes(100, 1)));
  }
  gate.open();
  Event ready;
  const auto back = copier.from_host(second, &ready, nullptr);
  ready.wait(hpu(0));
  EXPECT_TRUE(over(back[0]).cpu().equal(bytes(100, 2)));
}

TEST_F(CopierToHostTest, AFullDeviceWaitsForTheCopyToTheHost) {
  Copier copier(hpu(0));
  const auto first =
      copier.to_host({bytes(100, 1).to(hpu(0)).storage()}, nullptr);
  copier.finish();
  Tensor other = bytes(100, 2).to(hpu(0));
  synchronize();
  set_memory_limit(0, bytes_in_use(0));
  set_copy_cost({/*latency=*/1e-3, /*seconds_per_byte=*/0});
  const auto second = copier.to_host({other.storage()}, nullptr);
  other.reset();
  Event ready;
  const auto back = copier.from_host(first, &ready, nullptr);
  ready.wait(hpu(0));
  EXPECT_TRUE(over(back[0]).cpu().equal(bytes(100, 1)));
}

TEST_F(CopierToHostTest, UsesPinnedMemoryAgain) {
  Copier copier(hpu(0));
  const auto round = [&] {
    const auto on_host =
        copier.to_host({bytes(1000, 1).to(hpu(0)).storage()}, nullptr);
    Event ready;
    const auto back = copier.from_host(on_host, &ready, nullptr);
    ready.wait(hpu(0));
  };
  const auto before = pinned_bytes_made();
  round();
  EXPECT_EQ(pinned_bytes_made() - before, 1024);
  for (int k = 0; k < 3; ++k) round();
  EXPECT_EQ(pinned_bytes_made() - before, 1024);
}

TEST_F(CopierToHostTest, TakesTheTimesOfCopies) {
  Copier copier(hpu(0));
  Copier::Times there, back;
  const auto on_host =
      copier.to_host({bytes(8, 0).to(hpu(0)).storage()}, &there);
  Event ready;
  const auto storages = copier.from_host(on_host, &ready, &back);
  ready.wait(hpu(0));
  EXPECT_GE(there.end.seconds_since(there.start), 0);
  EXPECT_GE(back.start.seconds_since(there.end), 0);
  EXPECT_GE(back.end.seconds_since(back.start), 0);
}

TEST_F(CopierToHostTest, AFullDeviceIsAnErrorAndLaterCopiesWork) {
  Copier copier(hpu(0));
  const auto on_host =
      copier.to_host({bytes(200, 1).to(hpu(0)).storage()}, nullptr);
  copier.finish();
  synchronize();
  set_memory_limit(0, bytes_in_use(0) + 100);
  Event ready;
  EXPECT_THAT(error_of([&] { copier.from_host(on_host, &ready, nullptr); }),
              StartsWith("c10::OutOfMemoryError: "));
  set_memory_limit(0, std::nullopt);
  const auto back = copier.from_host(on_host, &ready, nullptr);
  ready.wait(hpu(0));
  EXPECT_TRUE(over(back[0]).cpu().equal(bytes(200, 1)));
}

TEST(HostBuffersTest, AreUsedAgainUnlessTheyAreMuchTooLarge) {
  const auto buffers = std::make_shared<HostBuffers>(/*pinned=*/false);
  std::optional<HostBuffers::Buffer> first = HostBuffers::take(buffers, 100);
  const void* const memory = first->bytes().const_data_ptr();
  EXPECT_EQ(first->bytes().numel(), 100);
  EXPECT_NE(HostBuffers::take(buffers, 100).bytes().const_data_ptr(), memory);
  first.reset();
  HostBuffers::Buffer other = HostBuffers::take(buffers, 49);
  EXPECT_EQ(other.bytes().numel(), 49);
  EXPECT_EQ(HostBuffers::take(buffers, 50).bytes().numel(), 100);
  EXPECT_EQ(HostBuffers::take(buffers, 101).bytes().numel(), 101);
}

TEST(HostBuffersTest, GoBackWhenTheirHolderIsReplaced) {
  const auto buffers = std::make_shared<HostBuffers>(/*pinned=*/false);
  HostBuffers::Buffer held = HostBuffers::take(buffers, 64);
  const void* const memory = held.bytes().const_data_ptr();
  held = HostBuffers::Buffer();
  EXPECT_FALSE(held.bytes().defined());
  EXPECT_EQ(HostBuffers::take(buffers, 64).bytes().const_data_ptr(), memory);
}

}  // namespace
}  // namespace gpipe::simulated
