#include "gpipe/testing/simulated/memory.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "gpipe/testing/errors.h"
#include "gpipe/testing/simulated/simulated.h"
#include "gpipe/testing/simulated/simulation.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using ::gpipe::testing::error_of;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsNan;
using ::testing::SizeIs;
using torch::Tensor;

Tensor floats(std::int64_t count, int device = 0) {
  return torch::empty({count}, hpu(device));
}

Tensor bytes(std::int64_t count, int device = 0) {
  return torch::empty({count}, torch::dtype(torch::kByte).device(hpu(device)));
}

class MemoryTest : public SimulatedTest {
 protected:
  void SetUp() override {
    SimulatedTest::SetUp();
    synchronize();
    empty_cache();
    for (int k = 0; k < kDevices; ++k) ASSERT_EQ(bytes_in_use(k), 0);
  }
};

TEST_F(MemoryTest, BytesInUseAreThoseAskedForByTensorsThatAreAlive) {
  Tensor x = bytes(10);
  EXPECT_EQ(bytes_in_use(0), 10);
  Tensor y = floats(3);
  EXPECT_EQ(bytes_in_use(0), 22);
  const Tensor view = x.narrow(0, 2, 3);
  x.reset();
  EXPECT_EQ(bytes_in_use(0), 22) << "the view keeps it";
  y.reset();
  EXPECT_EQ(bytes_in_use(0), 10);
}

TEST_F(MemoryTest, OperatorsTakeTheBytesOfTheirResults) {
  const Tensor x = torch::zeros({8}, hpu(0));
  reset_peak(0);
  EXPECT_EQ(bytes_in_use(0), 32);
  {
    const Tensor y = x + 1;
    EXPECT_EQ(bytes_in_use(0), 64);
    y.add_(x);
    y.view({2, 4}).t().mul_(2);
    y.sum();
    EXPECT_EQ(bytes_in_use(0), 64);
  }
  EXPECT_EQ(bytes_in_use(0), 32);
  EXPECT_EQ(peak_bytes(0), 68);
}

TEST_F(MemoryTest, ThePeakIsTheMostSinceItWasReset) {
  reset_peak(0);
  reset_peak(1);
  EXPECT_EQ(peak_bytes(0), 0);
  Tensor x = bytes(10);
  bytes(20);
  bytes(15);
  EXPECT_EQ(bytes_in_use(0), 10);
  EXPECT_EQ(peak_bytes(0), 30);
  EXPECT_EQ(peak_bytes(1), 0);
  reset_peak(0);
  EXPECT_EQ(peak_bytes(0), 10);
}

TEST_F(MemoryTest, NewMemoryIsGarbage) {
  EXPECT_THAT(values(floats(100)), Each(IsNan()));
  EXPECT_TRUE(bytes(100).cpu().eq(255).all().item<bool>());
}

TEST_F(MemoryTest, AFreedBlockIsUsedAgainAtOnceByItsStream) {
  Gate gate(default_stream(0));
  Tensor x = floats(100);
  const void* const before = x.data_ptr();
  x.reset();
  Tensor y = floats(100);
  EXPECT_EQ(y.data_ptr(), before);
  y.reset();
  EXPECT_EQ(floats(60).data_ptr(), before) << "for a smaller one too";
  EXPECT_NE(floats(200).data_ptr(), before);
}

TEST_F(MemoryTest, AFreedBlockIsNotUsedByAnotherStream) {
  Tensor x = floats(100);
  const void* const before = x.data_ptr();
  x.reset();
  {
    const c10::StreamGuard guard(new_stream(0));
    EXPECT_NE(floats(100).data_ptr(), before);
  }
  EXPECT_NE(floats(100, 1).data_ptr(), before);
  EXPECT_EQ(floats(100).data_ptr(), before);
}

TEST_F(MemoryTest, FreedMemoryIsOverwrittenBehindItsLastUse) {
  Tensor sum;
  {
    Gate gate(default_stream(0));
    Tensor x = torch::ones({100}, hpu(0));
    sum = x.sum();
    x.reset();
    floats(100).fill_(7);
  }
  EXPECT_THAT(values(sum), ElementsAre(100));
}

// A fixture with a tensor that another, blocked stream uses.
class OtherStreamTest : public MemoryTest {
 protected:
  OtherStreamTest() : user_(new_stream(0)) {}

  void SetUp() override {
    MemoryTest::SetUp();
    x_ = torch::ones({100}, hpu(0));
    before_ = x_.data_ptr();
    user_.wait(record(default_stream(0)));
    gate_.emplace(user_);
    const c10::StreamGuard guard(user_);
    y_ = x_ * 2;
  }
  void TearDown() override {
    gate_.reset();
    synchronize();
    x_.reset();
    y_.reset();
    MemoryTest::TearDown();
  }

  static c10::Event record(const c10::Stream& stream) {
    c10::Event event(kDeviceType);
    event.record(stream);
    return event;
  }
  // Frees the tensor. If its memory is free immediately, it is overwritten
  // before the other stream continues.
  void release_and_open() {
    x_.reset();
    default_stream(0).synchronize();
    gate_->open();
    user_.synchronize();
  }

  const c10::Stream user_;
  std::optional<Gate> gate_;
  Tensor x_, y_;
  const void* before_ = nullptr;
};

TEST_F(OtherStreamTest, ARecordedOneThatIsBehindKeepsTheBlock) {
  x_.record_stream(user_);
  x_.reset();
  EXPECT_EQ(bytes_in_use(0), 400) << "that of y_";
  Tensor z = floats(100);
  EXPECT_NE(z.data_ptr(), before_);
  z.reset();
  gate_->open();
  user_.synchronize();
  const Tensor first = floats(100), second = floats(100);
  EXPECT_TRUE(first.data_ptr() == before_ || second.data_ptr() == before_);
  EXPECT_THAT(values(y_), Each(2));
}

TEST_F(OtherStreamTest, ARecordedOneNeedOnlyDoWhatItWasGivenBeforeTheRelease) {
  x_.record_stream(user_);
  x_.reset();
  const c10::Event event = record(user_);
  Gate next(user_);
  gate_->open();
  event.synchronize();
  EXPECT_FALSE(user_.query());
  EXPECT_EQ(floats(100).data_ptr(), before_);
}

TEST_F(OtherStreamTest, WithARecordItReadsWhatWasThere) {
  x_.record_stream(user_);
  release_and_open();
  EXPECT_THAT(values(y_), Each(2));
  EXPECT_THAT(take_races(), IsEmpty());
}

TEST_F(OtherStreamTest, WithoutARecordItReadsGarbageAndThatIsReported) {
  release_and_open();
  EXPECT_THAT(values(y_), Each(IsNan()));
  EXPECT_THAT(take_races(),
              ElementsAre("no wait orders aten::mul on hpu:0 stream " +
                          std::to_string(user_.id()) +
                          ", reading, and the next use of the freed memory "
                          "on hpu:0 default stream, writing: bytes 0 to 400 "
                          "of a block of 448"));
}

TEST_F(OtherStreamTest, AMissingRecordIsReportedThoughTheTimingWasGood) {
  gate_->open();
  Simulation::get().quiesce(0);  // HappensBefore does not see this wait
  x_.reset();
  EXPECT_THAT(take_races(), SizeIs(1));
  synchronize();
  EXPECT_THAT(values(y_), Each(2));
}

TEST_F(OtherStreamTest, AnOwnerThatWaitsNeedsNoRecord) {
  default_stream(0).wait(record(user_));
  x_.reset();
  EXPECT_EQ(floats(100).data_ptr(), before_);
  gate_->open();
  EXPECT_THAT(values(y_), Each(2));
}

TEST_F(OtherStreamTest, AnAllocationAtTheLimitWaitsForBlocksThatStreamsHold) {
  {
    const c10::StreamGuard guard(user_);
    busy(y_, 2e-3);
  }
  x_.record_stream(user_);
  x_.reset();
  set_memory_limit(0, 1000);
  const Tensor other = floats(50);
  EXPECT_EQ(bytes_in_use(0), 600);
  const auto stats = at::accelerator::getDeviceStats(0);
  EXPECT_EQ(stats.active_bytes[0].current, 1000);
  EXPECT_EQ(stats.requested_bytes[0].current, 1000);
  EXPECT_EQ(stats.allocated_bytes[0].current, 600);
  gate_->open();
  EXPECT_EQ(floats(100).data_ptr(), before_);
}

class LimitTest : public MemoryTest {};

TEST_F(LimitTest, TellsTheBytesAskedInUseAndAllowed) {
  const Tensor x = bytes(100);
  set_memory_limit(0, 150);
  EXPECT_EQ(error_of([] { bytes(51); }),
            "c10::OutOfMemoryError: hpu:0 is out of memory: asked for 51 bytes "
            "with 100 of 150 bytes in use");
}

TEST_F(LimitTest, ARefusalLeavesTheDeviceUsable) {
  Tensor x = torch::ones({10}, hpu(0));
  set_memory_limit(0, 60);
  EXPECT_THAT(error_of([&] { x + x; }), HasSubstr("OutOfMemoryError"));
  EXPECT_EQ(bytes_in_use(0), 40);
  EXPECT_THAT(values(x.mul_(2)), Each(2));
  EXPECT_THAT(values(x.narrow(0, 0, 5) + 1), Each(3));
  x.reset();
  EXPECT_EQ(bytes(60).numel(), 60);
  EXPECT_EQ(error_of([] { synchronize(); }), "");
}

class StatsTest : public MemoryTest {};

// A new process, in which nothing has used an accelerator.
TEST(StatsDeathTest, AreRefusedBeforeTheFirstUseAsOnCuda) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto read = [] {
    at::accelerator::emptyCache();
    std::fputs(error_of([] { at::accelerator::getDeviceStats(1); }).c_str(),
               stderr);
    std::fputs(error_of([] { at::accelerator::resetPeakStats(1); }).c_str(),
               stderr);
    bytes(10, 1);
    std::_Exit(error_of([] { at::accelerator::getDeviceStats(1); }) == "" ? 0
                                                                          : 1);
  };
  EXPECT_EXIT(read(), ::testing::ExitedWithCode(0),
              "Invalid device argument 1.*Invalid device argument 1");
}

TEST_F(StatsTest, DeviceStatsAreExact) {
  constexpr std::size_t kAll = 0;  // StatType::AGGREGATE
  at::accelerator::resetAccumulatedStats(1);
  at::accelerator::resetPeakStats(1);
  const Tensor x = bytes(10, 1);
  bytes(100, 1);
  set_memory_limit(1, 50);
  EXPECT_NE(error_of([] { bytes(60, 1); }), "");
  const auto stats = at::accelerator::getDeviceStats(1);
  EXPECT_EQ(stats.allocation[kAll].allocated, 2);
  EXPECT_EQ(stats.allocated_bytes[kAll].current, 10);
  EXPECT_EQ(stats.allocated_bytes[kAll].peak, 110);
  EXPECT_EQ(stats.requested_bytes[kAll].current, 10);
  EXPECT_EQ(stats.requested_bytes[kAll].peak, 110);
  EXPECT_EQ(stats.active_bytes[kAll].current, 10);
  EXPECT_EQ(stats.reserved_bytes[kAll].current, 64 + 128);
  EXPECT_EQ(stats.reserved_bytes[kAll].peak, 64 + 128);
  EXPECT_EQ(stats.num_ooms, 1);

  at::accelerator::resetPeakStats(1);
  EXPECT_EQ(at::accelerator::getDeviceStats(1).allocated_bytes[kAll].peak, 10);
  at::accelerator::resetAccumulatedStats(1);
  EXPECT_EQ(at::accelerator::getDeviceStats(1).allocation[kAll].allocated, 0);
  EXPECT_EQ(at::accelerator::getDeviceStats(1).num_ooms, 0);
}

TEST_F(StatsTest, MemoryInfoIsWhatIsFreeAndTheLimit) {
  const Tensor x = bytes(10);
  set_memory_limit(0, 50);
  EXPECT_EQ(at::accelerator::getMemoryInfo(0),
            (std::pair<std::size_t, std::size_t>(40, 50)));
  set_memory_limit(0, 5);
  EXPECT_EQ(at::accelerator::getMemoryInfo(0),
            (std::pair<std::size_t, std::size_t>(0, 5)));
  set_memory_limit(0, std::nullopt);
  const auto [free, total] = at::accelerator::getMemoryInfo(0);
  EXPECT_EQ(total - free, 10u);
}

std::int64_t reserved(int device) {
  return at::accelerator::getDeviceStats(static_cast<c10::DeviceIndex>(device))
      .reserved_bytes[0]
      .current;
}

TEST_F(StatsTest, EmptyCacheReturnsWhatIsFree) {
  const Tensor x = torch::ones({16}, hpu(0));
  floats(100);
  floats(16, 3);
  EXPECT_EQ(reserved(0), 64 + 448);
  EXPECT_EQ(reserved(3), 64);
  at::accelerator::emptyCache();
  EXPECT_EQ(reserved(0), 64);
  EXPECT_EQ(reserved(3), 0);
  EXPECT_THAT(values(x), Each(1));
  EXPECT_THAT(values(floats(100)), Each(IsNan()));
}

TEST_F(StatsTest, EmptyCacheWaitsForStreamsAndIsNoWaitOfTheProgram) {
  Tensor x = torch::ones({16}, hpu(0));
  const c10::Stream user = new_stream(0);
  c10::Event event(kDeviceType);
  event.record(default_stream(0));
  event.block(user);
  Tensor y;
  {
    const c10::StreamGuard guard(user);
    busy(x, 2e-3);
    y = x + 1;
  }
  x.record_stream(user);
  x.reset();
  const std::int64_t waits = host_waits();
  empty_cache();
  EXPECT_EQ(host_waits(), waits);
  EXPECT_EQ(reserved(0), 64);
  // emptyCache() adds no order.
  y.add_(1);
  EXPECT_THAT(take_races(), SizeIs(1));
  synchronize();
  EXPECT_THAT(values(y), Each(3));
}

}  // namespace
}  // namespace gpipe::simulated
