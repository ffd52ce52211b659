// The memory of the simulated accelerators, pinned host memory, and access to
// the memory of a tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "gpipe/testing/simulated/order.h"
#include "gpipe/testing/simulated/simulation.h"

namespace gpipe::simulated {

// ---- The memory of the simulated accelerators.

// A caching allocator like those of real accelerators, but as eager as the
// rules allow. A freed block is overwritten by its stream (0xff bytes: NaN,
// -1). The next allocation for that stream that fits uses the block again, in
// the order of the stream's work. If other streams are recorded for a block,
// this happens after their events. A full device waits until all its streams
// are idle, as when unused memory has to be returned first. So a missing record
// gives wrong numbers and a report of HappensBefore.
//
// The memory is host memory. Nothing is returned to the system while streams
// are working, so a stream that accesses freed memory reads garbage and does
// not crash.
//
// Thread-safe.
class Memory : public c10::DeviceAllocator {
 public:
  static Memory& get();

  // Allocates memory for the current stream of the current device.
  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source,
                 std::size_t bytes) const override;

  // Sets a limit for the bytes in use of a device; nullopt removes it. An
  // allocation above the limit throws c10::OutOfMemoryError.
  void set_limit(c10::DeviceIndex device, std::optional<std::size_t> bytes);
  // The bytes that live tensors have requested, and their peak since
  // resetPeakStats().
  std::int64_t in_use(c10::DeviceIndex device);
  std::int64_t peak(c10::DeviceIndex device);
  // The largest number of bytes, since resetPeakStats(), of live tensors and of
  // freed ones that wait for a stream that was recorded for them. LibTorch's
  // allocator for CUDA calls them active bytes.
  std::int64_t active_peak(c10::DeviceIndex device);

  // Like CUDA's allocator, this one has no statistics and throws when they are
  // read, until LibTorch has prepared the device type: at the first allocation
  // of the process, or in Context::lazyInitDevice().
  void init() { initialized_ = true; }
  bool initialized() override { return initialized_; }
  // Frees unused blocks. Blocks until all streams are idle.
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
    std::vector<std::shared_ptr<Mark>> marks;  // set when the block is freed
  };
  struct Device {
    std::int64_t in_use = 0, waiting = 0, reserved = 0;
    std::int64_t peak = 0, active_peak = 0, reserved_peak = 0;
    std::int64_t allocations = 0, out_of_memory = 0;
    std::optional<std::size_t> limit;
    // Freed blocks that can be used again, by stream and capacity.
    std::map<c10::StreamId, std::multimap<std::size_t, Block*>> free;
    std::vector<Block*> pending;  // freed, but marks are not reached
  };

  static void give_back(void* block);
  void release(Block* block);
  void overwrite(Block* block);
  void collect(Device& device);
  // Block until the freed blocks can be used again, and until all streams of
  // the device are idle. Both without `lock`, because work of streams may free
  // memory.
  void wait_for_pending(Device& device, std::unique_lock<std::mutex>& lock);
  void wait_for_device(c10::DeviceIndex index,
                       std::unique_lock<std::mutex>& lock);

  const Device& counted(c10::DeviceIndex index) const;

  std::atomic<bool> initialized_ = false;
  std::mutex mutex_;
  Device devices_[kDevices];
};

// ---- Pinned host memory.

// Returns the allocator of host memory that devices access without the host: a
// copy from there to a device reads when its stream gets to it, and not before
// the call returns. Thread-safe.
at::Allocator* pinned_allocator();

// Returns whether `data` points into memory of pinned_allocator(). Thread-safe.
bool is_pinned(const void* data);

// Returns how many bytes of pinned memory have been allocated since the process
// started. Thread-safe.
std::int64_t pinned_bytes_made();

// ---- Access to the memory of a tensor on a simulated accelerator.

bool is_simulated(const at::Tensor& tensor);

// Returns a CPU tensor with the same memory. The memory must outlive it.
at::Tensor host_alias(const at::Tensor& tensor);

// Returns `copy`, marked as a wrapped number if `tensor` is one. A wrapped
// number has no dtype of its own: the 2.5 of `x * 2.5` does not make x a
// double.
at::Tensor wrapped_as(const at::Tensor& tensor, at::Tensor copy);

// Returns the bytes that an operation on `tensor` accesses.
Access access(const at::Tensor& tensor, bool write);

// Returns the stream on which this thread's operators on `tensor` run.
c10::Stream stream_of(const at::Tensor& tensor);

}  // namespace gpipe::simulated
