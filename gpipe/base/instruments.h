// Instruments of tests, benchmarks and programs: the bytes of tensors, and an
// operation that fails.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace gpipe::instruments {

// A counter of operations that makes the n-th one fail. Each operation reports
// itself with pass() or take().
// Threads: any thread may call pass() and take(). The other functions must not
// run at the same time as these.
class FailNth {
 public:
  // Calls `fail`, which throws, instead of operation `at`, counted from 0 from
  // now on.
  void arm(int64_t at, std::function<void()> fail) {
    at_ = at;
    count_ = 0;
    fail_ = std::move(fail);
    armed_ = true;
  }
  // Stops. Returns the number of operations since arm().
  int64_t disarm() {
    armed_ = false;
    return count_;
  }

  // Counts an operation. Returns `fail` if this operation must fail, else null.
  std::function<void()> take() {
    if (!armed_.load(std::memory_order_acquire) || count_++ != at_) return {};
    return fail_;
  }
  // Counts an operation, and calls `fail` if this operation must fail.
  void pass() {
    if (const auto fail = take()) fail();
  }

 private:
  std::atomic<bool> armed_{false};
  std::atomic<int64_t> count_{0};
  int64_t at_ = 0;
  std::function<void()> fail_;
};

// A CPU allocator that counts the bytes that tensors request, without rounding.
// install() makes it LibTorch's CPU allocator for the rest of the process.
// Tensors made before are not counted. Thread-safe.
class CountingAllocator {
 public:
  static void install();

  // The bytes of live tensors, and the largest value since reset_peak(). Both
  // are 0 at install().
  static int64_t live_bytes();
  static int64_t peak_bytes();
  static void reset_peak();

  // From now on counts only tensors that the calling thread makes, whichever
  // thread frees them. Tensors counted before stay counted.
  static void ignore_other_threads();

  // Makes allocations fail. Only allocations of at least one byte count.
  static FailNth& failing();
};

// ---- The bytes of the tensors on a device of any type.

// On accelerators, the figures come from LibTorch's caching allocator. A tensor
// counts with its block, which is rounded up (to 512 bytes on CUDA), until the
// host frees it. Prepares LibTorch for the device type if the process has not
// used it yet: CUDA's allocator throws otherwise.
//
// On the CPU, the figures are those of CountingAllocator, which must be
// installed.
//
// All functions throw c10::Error for a device type whose allocator does not
// count. They do not wait for the device. Threads: any.

// Returns the bytes of live tensors on `device`.
int64_t live_bytes(const c10::Device& device);
// Returns the largest value of live_bytes() since reset_peak_bytes().
int64_t peak_bytes(const c10::Device& device);
void reset_peak_bytes(const c10::Device& device);
// Returns the most bytes that LibTorch has reserved on `device` since
// reset_peak_bytes(); nullopt for the CPU.
std::optional<int64_t> peak_reserved_bytes(const c10::Device& device);

}  // namespace gpipe::instruments
