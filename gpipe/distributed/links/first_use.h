// Objects that are made when they are first used. No LibTorch.
#pragma once

#include <map>
#include <mutex>
#include <vector>

namespace gpipe::internal {

// A map from ranks to connections that are made at their first use.
// Thread-safe.
//
// `Pointer`: a shared pointer.
template <typename Pointer>
class FirstUse {
 public:
  // Returns the object of `rank`. The first call makes it by `make()`; other
  // calls for the same rank wait for that, and calls for other ranks do not. If
  // `make()` throws, the next call tries again.
  template <typename Make>
  Pointer of(int rank, Make make) {
    Entry* entry = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      entry = &entries_[rank];
    }
    const std::lock_guard<std::mutex> lock(entry->mutex);
    if (!entry->pointer) entry->pointer = make();
    return entry->pointer;
  }

  // Returns all objects that have been made. Waits for those that are being
  // made.
  std::vector<Pointer> all() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Pointer> made;
    for (auto& [rank, entry] : entries_) {
      const std::lock_guard<std::mutex> entry_lock(entry.mutex);
      if (entry.pointer) made.push_back(entry.pointer);
    }
    return made;
  }

 private:
  struct Entry {
    std::mutex mutex;
    Pointer pointer;  // null at first
  };

  std::mutex mutex_;
  std::map<int, Entry> entries_;  // entries stay where they are
};

}  // namespace gpipe::internal
