#include "gpipe/runtime/device/copier.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "gpipe/runtime/device/memory_kind.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using at::Tensor;
using internal::Copier;
using internal::CopyLog;
using internal::Event;
using ::testing::IsEmpty;

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

}  // namespace
}  // namespace gpipe::simulated
