// The memory of the simulated accelerators.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "gpipe/testing/simulated/simulation.h"

namespace gpipe::simulated {

// A caching allocator as accelerators have them, but as eager as the rules
// allow: a block that is given back is overwritten (0xff: NaN, -1) by its
// stream and used again by the next allocation for that stream that fits, in
// the order of the stream's work. One that other streams were recorded for is
// so when their marks are reached. So a missing record is a wrong number, and
// a report of HappensBefore.
//
// Host memory; nothing is returned to the system while streams are at work,
// so that a stream that comes too late reads garbage and does not crash.
class Memory : public c10::DeviceAllocator {
 public:
  static Memory& get();

  // For the current stream of the current device.
  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source,
                 std::size_t bytes) const override;

  // c10::OutOfMemoryError for allocations that would bring the device's bytes
  // in use above it. none: no limit.
  void set_limit(c10::DeviceIndex device, std::optional<std::size_t> bytes);
  // Bytes as asked for, of tensors that are alive.
  std::int64_t in_use(c10::DeviceIndex device);
  std::int64_t peak(c10::DeviceIndex device);

  bool initialized() override { return true; }
  // Waits for all streams first.
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(
      c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<std::size_t, std::size_t> getMemoryInfo(
      c10::DeviceIndex device) override;

 private:
  struct Block {
    void* data;
    std::size_t capacity;
    std::size_t bytes;
    c10::Stream owner;
    std::vector<c10::Stream> recorded;
    std::vector<std::shared_ptr<Mark>> marks;  // once given back
  };
  struct Device {
    std::int64_t in_use = 0, waiting = 0, peak = 0, reserved = 0;
    std::int64_t allocations = 0, out_of_memory = 0;
    std::optional<std::size_t> limit;
    // Given back and free again, by stream and capacity.
    std::map<c10::StreamId, std::multimap<std::size_t, Block*>> free;
    std::vector<Block*> pending;  // given back, marks not reached
  };

  static void give_back(void* block);
  void release(Block* block);
  void overwrite(Block* block);
  void collect(Device& device);
  void wait_for_pending(Device& device);

  std::mutex mutex_;
  Device devices_[kDevices];
};

}  // namespace gpipe::simulated
