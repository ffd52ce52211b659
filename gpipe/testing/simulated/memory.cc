#include "gpipe/testing/simulated/memory.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "gpipe/testing/simulated/simulation.h"

namespace gpipe::simulated {
namespace {

constexpr int kGarbage = 0xff;
constexpr std::size_t kAlignment = 64;

}  // namespace

Memory& Memory::get() {
  static auto* const memory = new Memory();
  return *memory;
}

c10::DataPtr Memory::allocate(std::size_t bytes) {
  const c10::DeviceIndex index = current_device();
  const c10::Device on(kDeviceType, index);
  if (bytes == 0) return {nullptr, nullptr, &give_back, on};
  const c10::Stream stream = current_stream(index);
  make_context(index);
  init();
  Simulation::get().failing(Operation::kAllocation).pass();

  std::unique_lock<std::mutex> lock(mutex_);
  Device& device = devices_[index];
  collect(device);
  const auto asked = static_cast<std::int64_t>(bytes);
  const auto fits = [&] {
    return !device.limit || device.in_use + device.waiting + asked <=
                                static_cast<std::int64_t>(*device.limit);
  };
  if (!fits()) wait_for_pending(device, lock);
  if (!fits()) wait_for_device(index, lock);
  if (!fits()) {
    ++device.out_of_memory;
    TORCH_CHECK_WITH(OutOfMemoryError, false, on,
                     " is out of memory: asked for ", bytes, " bytes with ",
                     device.in_use, " of ", *device.limit, " bytes in use");
  }

  Block* block = nullptr;
  auto& free = device.free[stream.id()];
  const auto found = free.lower_bound(bytes);
  if (found != free.end()) {
    block = found->second;
    free.erase(found);
  } else {
    const std::size_t capacity =
        (bytes + kAlignment - 1) / kAlignment * kAlignment;
    block = new Block{std::aligned_alloc(kAlignment, capacity),
                      capacity,
                      bytes,
                      stream,
                      {},
                      {}};
    TORCH_CHECK_WITH(OutOfMemoryError, block->data, "the host has no ",
                     capacity, " bytes for ", on);
    std::memset(block->data, kGarbage, capacity);
    Simulation::get().add_block(block->data, capacity);
    device.reserved += static_cast<std::int64_t>(capacity);
    device.reserved_peak = std::max(device.reserved_peak, device.reserved);
  }
  block->bytes = bytes;
  ++device.allocations;
  device.in_use += asked;
  device.peak = std::max(device.peak, device.in_use);
  device.active_peak =
      std::max(device.active_peak, device.in_use + device.waiting);
  return {block->data, block, &give_back, on};
}

void Memory::give_back(void* block) {
  if (block) get().release(static_cast<Block*>(block));
}

void Memory::release(Block* block) {
  std::lock_guard<std::mutex> lock(mutex_);
  Device& device = devices_[block->owner.device_index()];
  const auto bytes = static_cast<std::int64_t>(block->bytes);
  device.in_use -= bytes;
  block->marks = Simulation::get().release_block(block->data, block->owner,
                                                 block->recorded);
  if (block->marks.empty()) {
    overwrite(block);
  } else {
    device.waiting += bytes;
    device.pending.push_back(block);
  }
}

void Memory::overwrite(Block* block) {
  block->recorded.clear();
  block->marks.clear();
  const auto begin = reinterpret_cast<std::uintptr_t>(block->data);
  Simulation::get().enqueue_always(
      block->owner, {"the overwriting of freed memory",
                     {{begin, begin + block->capacity, true}},
                     [data = block->data, bytes = block->capacity] {
                       std::memset(data, kGarbage, bytes);
                     }});
  devices_[block->owner.device_index()].free[block->owner.id()].emplace(
      block->capacity, block);
}

void Memory::collect(Device& device) {
  const auto is_free = [&](Block* block) {
    if (!std::all_of(block->marks.begin(), block->marks.end(),
                     [](const auto& mark) { return mark->reached(); })) {
      return false;
    }
    device.waiting -= static_cast<std::int64_t>(block->bytes);
    overwrite(block);
    return true;
  };
  device.pending.erase(
      std::remove_if(device.pending.begin(), device.pending.end(), is_free),
      device.pending.end());
}

void Memory::wait_for_pending(Device& device,
                              std::unique_lock<std::mutex>& lock) {
  std::vector<std::shared_ptr<Mark>> marks;
  for (const Block* block : device.pending) {
    marks.insert(marks.end(), block->marks.begin(), block->marks.end());
  }
  lock.unlock();
  for (const auto& mark : marks) mark->wait();
  lock.lock();
  collect(device);
}

void Memory::wait_for_device(c10::DeviceIndex index,
                             std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  Simulation::get().quiesce(index);
  lock.lock();
  collect(devices_[index]);
}

void Memory::copy_data(void* target, const void* source,
                       std::size_t bytes) const {
  default_copy_data(target, source, bytes);
}

void Memory::set_limit(c10::DeviceIndex device,
                       std::optional<std::size_t> bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  devices_[device].limit = bytes;
}

std::int64_t Memory::in_use(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  return devices_[device].in_use;
}

std::int64_t Memory::peak(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  return devices_[device].peak;
}

std::int64_t Memory::active_peak(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  return devices_[device].active_peak;
}

void Memory::emptyCache(c10::MempoolId_t /*pool*/) {
  for (c10::DeviceIndex k = 0; k < kDevices; ++k) {
    Simulation::get().quiesce(k);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  for (c10::DeviceIndex k = 0; k < kDevices; ++k) {
    wait_for_pending(devices_[k], lock);
    // Blocks until the overwriting that wait_for_pending() has enqueued is
    // done.
    Simulation::get().quiesce(k);
    for (auto& [stream, blocks] : devices_[k].free) {
      for (auto& [capacity, block] : blocks) {
        Simulation::get().remove_block(block->data);
        devices_[k].reserved -= static_cast<std::int64_t>(capacity);
        std::free(block->data);
        delete block;
      }
    }
    devices_[k].free.clear();
  }
}

void Memory::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  auto* const block = static_cast<Block*>(data.get_context());
  if (!block) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (stream == block->owner) return;
  auto& recorded = block->recorded;
  if (std::find(recorded.begin(), recorded.end(), stream) == recorded.end()) {
    recorded.push_back(stream);
  }
}

const Memory::Device& Memory::counted(c10::DeviceIndex index) const {
  TORCH_CHECK(initialized_, "Invalid device argument ", int{index},
              ": the allocator has not been initialised");
  return devices_[index];
}

c10::CachingDeviceAllocator::DeviceStats Memory::getDeviceStats(
    c10::DeviceIndex index) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Device& device = counted(index);
  c10::CachingDeviceAllocator::DeviceStats stats;
  const auto all =
      static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  stats.allocation[all].allocated = device.allocations;
  stats.allocated_bytes[all].current = device.in_use;
  stats.allocated_bytes[all].peak = device.peak;
  stats.active_bytes[all].current = device.in_use + device.waiting;
  stats.active_bytes[all].peak = device.active_peak;
  // As on CUDA, where a freed block counts until its streams are done with it.
  stats.requested_bytes[all] = stats.active_bytes[all];
  stats.reserved_bytes[all].current = device.reserved;
  stats.reserved_bytes[all].peak = device.reserved_peak;
  stats.num_ooms = device.out_of_memory;
  return stats;
}

void Memory::resetAccumulatedStats(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  counted(device);
  devices_[device].allocations = 0;
  devices_[device].out_of_memory = 0;
}

void Memory::resetPeakStats(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  counted(device);
  Device& of = devices_[device];
  of.peak = of.in_use;
  of.active_peak = of.in_use + of.waiting;
  of.reserved_peak = of.reserved;
}

std::pair<std::size_t, std::size_t> Memory::getMemoryInfo(
    c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t total =
      devices_[device].limit.value_or(std::size_t{1} << 40);
  return {total - std::min<std::size_t>(total, devices_[device].in_use), total};
}

namespace {

// Memory of the CPU's allocator, whose addresses are remembered. The order of
// accesses by streams is checked, as for the memory of devices.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr memory = c10::GetCPUAllocator()->allocate(bytes);
    void* const data = memory.get();
    if (bytes > 0) Simulation::get().add_block(data, bytes);
    made_ += static_cast<std::int64_t>(bytes);
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_.insert_or_assign(data, Block{bytes, std::move(memory)});
    return {data, data, &give_back, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* target, const void* source,
                 std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

  bool owns(const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto next = blocks_.upper_bound(data);
    if (next == blocks_.begin()) return false;
    const auto& [begin, block] = *std::prev(next);
    return std::less<>()(data, static_cast<const char*>(begin) + block.bytes);
  }

  std::int64_t made() const { return made_; }

  static PinnedAllocator& get() {
    static auto* const allocator = new PinnedAllocator();
    return *allocator;
  }

 private:
  struct Block {
    std::size_t bytes;
    c10::DataPtr memory;
  };

  static void give_back(void* data) {
    PinnedAllocator& self = get();
    std::lock_guard<std::mutex> lock(self.mutex_);
    Simulation::get().remove_block(data);
    self.blocks_.erase(data);
  }

  std::mutex mutex_;
  std::map<const void*, Block, std::less<>> blocks_;  // by begin
  std::atomic<std::int64_t> made_{0};
};

}  // namespace

at::Allocator* pinned_allocator() { return &PinnedAllocator::get(); }

bool is_pinned(const void* data) { return PinnedAllocator::get().owns(data); }

std::int64_t pinned_bytes_made() { return PinnedAllocator::get().made(); }

bool is_simulated(const at::Tensor& tensor) {
  return tensor.device().type() == kDeviceType;
}

at::Tensor host_alias(const at::Tensor& tensor) {
  return wrapped_as(
      tensor, at::from_blob(
                  tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(),
                  at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU)));
}

at::Tensor wrapped_as(const at::Tensor& tensor, at::Tensor copy) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

Access access(const at::Tensor& tensor, bool write) {
  Access access;
  access.write = write;
  if (tensor.numel() == 0) return access;
  int64_t last = 0;
  for (int64_t k = 0; k < tensor.dim(); ++k) {
    last += (tensor.size(k) - 1) * tensor.stride(k);
  }
  access.begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  access.end =
      access.begin + static_cast<std::size_t>(last + 1) * tensor.itemsize();
  return access;
}

c10::Stream stream_of(const at::Tensor& tensor) {
  return current_stream(tensor.device().index());
}

}  // namespace gpipe::simulated
