#include "gpipe/testing/simulated/pinned.h"

#include <c10/core/CPUAllocator.h>

#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

namespace gpipe::simulated {
namespace {

// Memory of the CPU's allocator, whose addresses are remembered.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr memory = c10::GetCPUAllocator()->allocate(bytes);
    void* const data = memory.get();
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
    self.blocks_.erase(data);
  }

  std::mutex mutex_;
  std::map<const void*, Block, std::less<>> blocks_;  // by begin
};

}  // namespace

at::Allocator* pinned_allocator() { return &PinnedAllocator::get(); }

bool is_pinned(const void* data) { return PinnedAllocator::get().owns(data); }

}  // namespace gpipe::simulated
