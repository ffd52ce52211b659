#include "gpipe/runtime/device/stream.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "gpipe/testing/errors.h"
#include "gpipe/testing/simulated/simulation.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using at::Tensor;
using internal::Event;
using internal::Ordering;
using internal::Site;
using internal::StreamScope;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::SizeIs;

const c10::Device kHost(c10::kCPU);

c10::Stream current(int device) {
  return c10::impl::VirtualGuardImpl(kDeviceType).getStream(hpu(device));
}
c10::Device current_device() {
  return c10::impl::VirtualGuardImpl(kDeviceType).getDevice();
}

class StreamTest : public SimulatedTest {};

TEST_F(StreamTest, OnlyAcceleratorsHaveStreams) {
  EXPECT_FALSE(internal::has_streams(kHost));
  EXPECT_FALSE(internal::has_streams(c10::Device(c10::kMeta, 1)));
  EXPECT_TRUE(internal::has_streams(hpu(1)));
  using internal::OwnedStream;
  EXPECT_FALSE(OwnedStream(kHost).get().has_value());
  EXPECT_FALSE(OwnedStream(c10::Device(c10::kMeta)).get().has_value());
  const OwnedStream stream(hpu(1)), other(hpu(1));
  ASSERT_TRUE(stream.get().has_value());
  EXPECT_EQ(stream.get()->device(), hpu(1));
  EXPECT_NE(*stream.get(), default_stream(1));
  EXPECT_NE(*stream.get(), *other.get());
}

TEST_F(StreamTest, AStreamWithoutOwnerServesTheNextOne) {
  using internal::OwnedStream;
  std::optional<OwnedStream> first(hpu(1)), second(hpu(1));
  const c10::Stream of_first = *first->get(), of_second = *second->get();
  EXPECT_NE(of_first, of_second);
  first.reset();
  const OwnedStream other(hpu(2)), next(hpu(1)), third(hpu(1));
  EXPECT_EQ(*next.get(), of_first);
  EXPECT_NE(*third.get(), of_first);
  EXPECT_NE(*third.get(), of_second);
  EXPECT_EQ(other.get()->device(), hpu(2));
}

TEST_F(StreamTest, ADeviceWithoutIndexIsTheCurrentOne) {
  using internal::with_index;
  EXPECT_EQ(with_index(c10::Device(c10::kCPU, 0)), kHost);
  EXPECT_EQ(with_index(hpu(3)), hpu(3));
  EXPECT_EQ(with_index(c10::Device(c10::kMeta)), c10::Device(c10::kMeta));
  EXPECT_EQ(with_index(c10::Device(c10::kMeta, 1)), c10::Device(c10::kMeta, 1));
  const StreamScope scope(default_stream(2));
  EXPECT_EQ(with_index(c10::Device(kDeviceType)), hpu(2));
}

TEST_F(StreamTest, ADeviceThatIsNotLinkedIsRefusedWithWhatToDo) {
  if (c10::impl::hasDeviceGuardImpl(c10::kCUDA)) GTEST_SKIP() << "CUDA is here";
  for (const char* name : {"cuda", "cuda:0"}) {
    EXPECT_EQ(
        testing::error_of([&] { internal::check_linked(c10::Device(name)); }),
        "c10::ValueError: this program is not linked with LibTorch's code for "
        "the device " +
            std::string(name) +
            "; add the dependency @gpipe//third_party/libtorch:cuda to the "
            "program, build it with --define=gpipe_cuda=1 (in the gpipe "
            "repository: --config=cuda), and use a LibTorch with CUDA");
  }
  EXPECT_THAT(
      testing::error_of([] { internal::with_index(c10::Device("xpu")); }),
      ::testing::HasSubstr("xpu; link the library of this device"));
}

TEST_F(StreamTest, AScopeSetsStreamAndDeviceAndRestoresBoth) {
  const c10::Stream one = new_stream(1), two = new_stream(1);
  {
    const StreamScope outer(one);
    EXPECT_EQ(current_device(), hpu(1));
    EXPECT_EQ(current(1), one);
    {
      const StreamScope inner(two);
      const StreamScope other(default_stream(3));
      const StreamScope none(std::nullopt);
      EXPECT_EQ(current_device(), hpu(3));
      EXPECT_EQ(current(1), two);
    }
    EXPECT_EQ(current_device(), hpu(1));
    EXPECT_EQ(current(1), one);
  }
  EXPECT_EQ(current_device(), hpu(0));
  EXPECT_EQ(current(1), default_stream(1));
}

TEST_F(StreamTest, AnEventOrdersTwoStreamsWithoutTheHost) {
  const Tensor tensor = at::zeros({4}, at::TensorOptions(hpu(0)));
  synchronize();
  const auto waits = host_waits();
  const c10::Stream writer = new_stream(0);
  Gate gate(writer);
  Event written;
  {
    const StreamScope scope(writer);
    internal::record_stream(tensor, hpu(0));
    tensor.add_(3);
    written = Event::record(hpu(0));
  }
  written.wait(hpu(0));
  const Tensor result = tensor.mul(2);
  EXPECT_FALSE(default_stream(0).query());
  EXPECT_EQ(host_waits(), waits);
  gate.open();
  EXPECT_TRUE(result.cpu().equal(at::full({4}, 6.f)));
}

TEST_F(StreamTest, AnEventOrWaitThatIsLeftOutOrdersNothing) {
  for (const auto leave_out : {
           +[](Ordering each, const Site&) { return each == Ordering::kWait; },
           +[](Ordering each, const Site&) { return each == Ordering::kEvent; },
       }) {
    const Tensor tensor = at::zeros({4}, at::TensorOptions(hpu(0)));
    synchronize();
    const StreamScope scope(new_stream(0));
    tensor.add_(3);
    internal::set_leave_out(leave_out);
    const Event written = Event::record(hpu(0));
    const StreamScope back(default_stream(0));
    written.wait(hpu(0));
    internal::set_leave_out(nullptr);
    tensor.mul(2);
    EXPECT_THAT(take_races(), SizeIs(1));
    synchronize();
  }
}

TEST_F(StreamTest, AnEventIsWaitedForOnTheHostWhereThereAreNoStreams) {
  const Tensor tensor = at::zeros({2}, at::TensorOptions(hpu(0)));
  busy(tensor, 1e-3);
  const Event made = Event::record(hpu(0));
  const auto waits = host_waits();
  made.wait(kHost);
  EXPECT_EQ(host_waits(), waits + 1);
  EXPECT_TRUE(default_stream(0).query());
}

TEST_F(StreamTest, WithoutStreamsAnEventHasHappened) {
  const auto waits = host_waits();
  for (const Event& event : {Event(), Event::record(kHost)}) {
    event.wait(kHost);
    event.wait(hpu(0));
  }
  EXPECT_EQ(host_waits(), waits);
  EXPECT_THAT(take_trace(), SizeIs(0));
}

// Uses a tensor of the default stream on another one that is held up, releases
// the tensor, and returns whether the next one gets its memory.
bool reused(bool record) {
  Tensor tensor = at::zeros({100}, at::TensorOptions(hpu(0)));
  const void* const memory = tensor.data_ptr();
  const c10::Stream other = new_stream(0);
  synchronize();
  Gate gate(other);
  {
    const StreamScope scope(other);
    if (record) internal::record_stream(tensor, hpu(0));
  }
  tensor.reset();
  tensor = at::empty({100}, at::TensorOptions(hpu(0)));
  return tensor.data_ptr() == memory;
}

TEST_F(StreamTest, ARecordedStreamKeepsMemoryUntilItIsDone) {
  EXPECT_TRUE(reused(/*record=*/false));
  EXPECT_FALSE(reused(/*record=*/true));
}

TEST_F(StreamTest, ARecordIsMadeOnlyForTensorsOfTheDevice) {
  static int records;
  records = 0;
  internal::set_leave_out([](Ordering each, const Site&) {
    records += each == Ordering::kRecord;
    return false;
  });
  internal::record_stream(Tensor(), hpu(0));
  internal::record_stream(at::zeros({2}), kHost);
  internal::record_stream(at::zeros({2}), hpu(0));
  const Tensor tensor = at::zeros({2}, at::TensorOptions(hpu(1)));
  internal::record_stream(tensor, hpu(0));
  EXPECT_EQ(records, 0);
  internal::record_stream(tensor, hpu(1));
  internal::set_leave_out(nullptr);
  EXPECT_EQ(records, 1);
}

class EventPoolTest : public SimulatedTest {};

TEST_F(EventPoolTest, AnEventIsMadeOnceAndUsedAgain) {
  const auto record = [](int device, bool timed) {
    return internal::record_event(hpu(device), timed);
  };
  record(2, false);
  record(2, true);
  record(3, false);
  const auto made = events_made();
  for (int k = 0; k < 4; ++k) {
    record(2, false);
    record(2, true);
    record(3, false);
  }
  EXPECT_EQ(events_made(), made);
  const auto one = record(2, false);
  const auto two = record(2, false);
  EXPECT_NE(one, two);
}

TEST_F(EventPoolTest, AStreamThatWaitsKeepsTheRecordThatItSaw) {
  const c10::Stream late = new_stream(0);
  Gate gate(default_stream(1));
  const c10::Event* const first = [&] {
    const auto event = internal::record_event(hpu(1), false);
    event->block(late);
    return event.get();
  }();
  const internal::StreamScope idle(new_stream(1));
  const auto again = internal::record_event(hpu(1), false);
  ASSERT_EQ(again.get(), first);
  again->synchronize();
  EXPECT_FALSE(late.query());
  gate.open();
  late.synchronize();
}

TEST_F(EventPoolTest, EventsOfADeviceTouchNoOther) {
  synchronize();
  forget_contexts();
  {
    const auto event = internal::Event::record(hpu(2));
    event.wait(hpu(3));
    const auto start = internal::Stamp::now(hpu(2));
    internal::Stamp::now(hpu(2)).seconds_since(start);
    start.wait();
    event.wait(c10::kCPU);
  }
  EXPECT_THAT(devices_with_context(), ElementsAre(2, 3));
}

class StampTest : public SimulatedTest {};

TEST_F(StampTest, OnACpuItIsTheClock) {
  const internal::Stamp start = internal::Stamp::now(c10::kCPU);
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_GE(internal::Stamp::now(c10::kCPU).seconds_since(start), 0.02);
}

TEST_F(StampTest, OnAnAcceleratorItIsTheTimeOfTheStreamNotOfTheHost) {
  const auto before = std::chrono::steady_clock::now();
  const internal::Stamp start = internal::Stamp::now(hpu(1));
  EXPECT_EQ(start.seconds_since(start), 0);  // waits for the stamp
  Gate gate(default_stream(1));
  const internal::Stamp end = internal::Stamp::now(hpu(1));
  std::this_thread::sleep_for(milliseconds(20));
  gate.open();
  const double seconds = end.seconds_since(start);
  EXPECT_GE(seconds, 0.02);
  const std::chrono::duration<double> passed =
      std::chrono::steady_clock::now() - before;
  EXPECT_LE(seconds, passed.count());
}

TEST_F(StampTest, TakingItDoesNotMakeTheHostWait) {
  const auto before = Simulation::get().counts().host_waits;
  const internal::Stamp start = internal::Stamp::now(hpu(0));
  const internal::Stamp end = internal::Stamp::now(hpu(0));
  EXPECT_EQ(Simulation::get().counts().host_waits, before);
  EXPECT_GE(end.seconds_since(start), 0);
  EXPECT_GT(Simulation::get().counts().host_waits, before);
}

}  // namespace
}  // namespace gpipe::simulated

namespace gpipe::internal {
namespace {

TEST(ShareOfThreads, IsAnEqualPartForEachCpuPartitionAndAtLeastOne) {
  const int before = at::get_num_threads();
  at::set_num_threads(7);
  const c10::Device cpu(c10::kCPU), other(c10::kHPU, 0);
  EXPECT_EQ(share_of_threads({cpu}), 7);
  EXPECT_EQ(share_of_threads({cpu, cpu}), 3);
  EXPECT_EQ(share_of_threads({other, cpu, other, cpu}), 3);
  EXPECT_EQ(share_of_threads({other}), 7);
  EXPECT_EQ(share_of_threads({}), 7);
  EXPECT_EQ(share_of_threads(std::vector<c10::Device>(8, cpu)), 1);
  at::set_num_threads(before);
}

}  // namespace
}  // namespace gpipe::internal
