#include "gpipe/runtime/device/copier.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "gpipe/base/instruments.h"
#include "gpipe/runtime/device/memory_kind.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/simulated/memory.h"
#include "gpipe/testing/simulated/simulated.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using at::Tensor;
using gpipe::instruments::CountingAllocator;
using gpipe::testing::error_of;
using internal::Copier;
using internal::CopyLog;
using internal::Event;
using internal::HostBuffers;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const c10::Device kCpu(c10::kCPU);

Tensor numbers(const c10::Device& device) {
  return at::arange(6, at::TensorOptions(at::kFloat)).to(device);
}

class CopierTest : public SimulatedTest {};

TEST_F(CopierTest, PassesATensorOfTheSameDeviceOn) {
  CopyLog log;
  for (const c10::Device& device : {kCpu, hpu(1)}) {
    Copier copier(device);
    const Tensor tensor = numbers(device);
    EXPECT_TRUE(
        copier.to_device(tensor, Event::record(device), &log).is_same(tensor));
    EXPECT_FALSE(copier.to_device(Tensor(), Event(), &log).defined());
  }
  EXPECT_THAT(log.copies, IsEmpty());
}

TEST_F(CopierTest, CopiesBetweenAcceleratorsWithoutTheHost) {
  Copier copier(hpu(1));
  const Tensor tensor = numbers(hpu(0));
  synchronize();
  const auto waits = host_waits();
  Gate gate(default_stream(0));
  tensor.add_(1);
  const Tensor copy = copier.to_device(tensor, Event::record(hpu(0)));
  const Tensor result = copy * 2;
  EXPECT_EQ(host_waits(), waits);
  gate.open();
  EXPECT_EQ(copy.device(), hpu(1));
  EXPECT_TRUE(result.cpu().equal((numbers(kCpu) + 1) * 2));
}

TEST_F(CopierTest, HasAStreamOfItsOwnAtBothEndsAndKeepsIt) {
  Copier copier(hpu(1));
  const Tensor tensor = numbers(hpu(0));
  take_trace();
  copier.to_device(tensor, Event::record(hpu(0)));
  copier.to_device(tensor, Event::record(hpu(0)));
  std::set<c10::StreamId> from, to;
  int copies = 0;
  for (const Given& each : take_trace()) {
    if (!each.other) continue;
    ++copies;
    from.insert(each.stream.id());
    to.insert(each.other->id());
    EXPECT_EQ(each.stream.device(), hpu(0));
    EXPECT_EQ(each.other->device(), hpu(1));
  }
  EXPECT_EQ(copies, 2);
  EXPECT_EQ(from.size(), 1u);
  EXPECT_EQ(to.size(), 1u);
  EXPECT_NE(*from.begin(), default_stream(0).id());
  EXPECT_NE(*to.begin(), default_stream(1).id());
}

TEST_F(CopierTest, ACopyToTheCpuIsCompleteWhenItReturns) {
  Copier copier(kCpu);
  const Tensor tensor = numbers(hpu(2));
  busy(tensor, 1e-3);
  tensor.add_(1);
  const Tensor copy = copier.to_device(tensor, Event::record(hpu(2)));
  EXPECT_TRUE(default_stream(2).query());
  EXPECT_TRUE(copy.equal(numbers(kCpu) + 1));
}

TEST_F(CopierTest, PinnedMemoryMayBeChangedAfterTheCopy) {
  Copier copier(hpu(1));
  Tensor tensor = numbers(kCpu).pin_memory();
  ASSERT_TRUE(tensor.is_pinned());
  set_copy_cost({/*latency=*/2e-3, /*seconds_per_byte=*/0});
  const Tensor copy = copier.to_device(tensor, Event());
  tensor.zero_();
  EXPECT_TRUE(copy.cpu().equal(numbers(kCpu)));
}

TEST_F(CopierTest, EachSourceHasStreamsOfItsOwn) {
  Copier copier(hpu(1));
  const Tensor one = numbers(hpu(0)), other = numbers(hpu(2));
  take_trace();
  copier.to_device(one, Event::record(hpu(0)));
  copier.to_device(other, Event::record(hpu(2)));
  std::set<c10::StreamId> to;
  for (const Given& each : take_trace()) {
    if (each.other) to.insert(each.other->id());
  }
  EXPECT_EQ(to.size(), 2u);
}

TEST_F(CopierTest, LogsEachCopyWithItsMakerBytesAndDevices) {
  const struct {
    c10::Device source, target;
    c10::Device from;  // whose stream gives the times
  } cases[] = {
      {hpu(0), hpu(1), hpu(0)}, {hpu(2), kCpu, hpu(2)}, {kCpu, hpu(3), hpu(3)}};
  for (const auto& each : cases) {
    Copier copier(each.target);
    CopyLog log;
    log.made_by = {2, ActionKind::kBackward, 5};
    const Tensor tensor = numbers(each.source);
    const Tensor copy =
        copier.to_device(tensor, Event::record(each.source), &log);
    EXPECT_TRUE(copy.cpu().equal(numbers(kCpu)));
    ASSERT_EQ(log.copies.size(), 1u);
    const CopyLog::Copy& logged = log.copies[0];
    EXPECT_EQ(logged.made_by, log.made_by);
    EXPECT_EQ(logged.bytes, 24);
    EXPECT_EQ(logged.from, each.from);
    EXPECT_EQ(logged.to, each.target);
    EXPECT_GE(logged.sent.seconds_since(logged.start), 0);
  }
}

std::vector<std::pair<Tensor, internal::MemoryKind>> labels;

TEST_F(CopierTest, LabelsOnlyCopiesAsBoundaryMemory) {
  internal::on_label([](const Tensor& tensor, internal::MemoryKind kind) {
    labels.emplace_back(tensor, kind);
  });
  Copier copier(hpu(1));
  const Tensor copy = copier.to_device(numbers(kCpu), Event());
  copier.to_device(copy, Event());
  internal::on_label(nullptr);
  const auto found = std::exchange(labels, {});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].first.is_same(copy));
  EXPECT_EQ(found[0].second, internal::MemoryKind::kBoundary);
}

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
  HostBuffers::Buffer first = HostBuffers::take(buffers, 100);
  const void* const memory = first->const_data_ptr();
  EXPECT_EQ(first->numel(), 100);
  EXPECT_NE(HostBuffers::take(buffers, 100)->const_data_ptr(), memory);
  first.reset();
  HostBuffers::Buffer other = HostBuffers::take(buffers, 49);
  EXPECT_EQ(other->numel(), 49);
  EXPECT_EQ(HostBuffers::take(buffers, 50)->numel(), 100);
  EXPECT_EQ(HostBuffers::take(buffers, 101)->numel(), 101);
}

TEST(HostBuffersTest, GoBackWhenTheirHolderIsReplaced) {
  const auto buffers = std::make_shared<HostBuffers>(/*pinned=*/false);
  HostBuffers::Buffer held = HostBuffers::take(buffers, 64);
  const void* const memory = held->const_data_ptr();
  held = HostBuffers::Buffer();
  EXPECT_EQ(HostBuffers::take(buffers, 64)->const_data_ptr(), memory);
}

// The sizes of cells may grow from step to step.
TEST(HostBuffersTest, UnusedOnesHoldAtMostWhatWasInUse) {
  CountingAllocator::install();
  const int64_t before = CountingAllocator::live_bytes();
  const auto live = [&] { return CountingAllocator::live_bytes() - before; };
  const auto buffers = std::make_shared<HostBuffers>(/*pinned=*/false);
  HostBuffers::take(buffers, 100);
  HostBuffers::take(buffers, 110);
  EXPECT_EQ(live(), 210);
  HostBuffers::take(buffers, 120);  // releases the one of 100
  EXPECT_EQ(live(), 230);
  HostBuffers::take(buffers, 115);  // takes the one of 120
  EXPECT_EQ(live(), 230);
  {
    const HostBuffers::Buffer one = HostBuffers::take(buffers, 110);
    const HostBuffers::Buffer other = HostBuffers::take(buffers, 120);
  }
  HostBuffers::take(buffers, 50);  // 230 were in use
  EXPECT_EQ(live(), 280);
  HostBuffers::take(buffers, 130);  // releases the one of 50
  EXPECT_EQ(live(), 360);
}

TEST_F(CopierToHostTest, ABufferThatIsReleasedIsReadToTheEnd) {
  CountingAllocator::install();
  const int64_t before = CountingAllocator::live_bytes();
  Copier copier(hpu(0));
  const auto to_host = [&](int size, int first) {
    return copier.to_host({bytes(size, first).to(hpu(0)).storage()}, nullptr);
  };
  auto on_host = to_host(1280, 0);
  copier.finish();
  on_host = Copier::OnHost();
  on_host = to_host(512, 1);
  copier.finish();
  synchronize();
  set_copy_cost({/*latency=*/2e-3, /*seconds_per_byte=*/0});
  Event ready;
  const auto back = copier.from_host(on_host, &ready, nullptr);
  on_host = Copier::OnHost();
  on_host = to_host(1536, 2);  // releases the buffer of 512
  ready.wait(hpu(0));
  EXPECT_TRUE(over(back[0]).cpu().equal(bytes(512, 1)));
  copier.finish();
  synchronize();
  EXPECT_EQ(CountingAllocator::live_bytes() - before, 1280 + 1536);
}

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
