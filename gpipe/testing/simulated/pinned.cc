#include "gpipe/testing/simulated/pinned.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "gpipe/testing/simulated/simulation.h"

namespace gpipe::simulated {
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

}  // namespace gpipe::simulated
