// The n-th of something fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

namespace gpipe::testing {

// Threads: pass() and take() by all; the others while nothing passes.
class FailNth {
 public:
  // In the place of number `at` from here on, from 0, `fail` is called, which
  // throws.
  void arm(int64_t at, std::function<void()> fail) {
    at_ = at;
    count_ = 0;
    fail_ = std::move(fail);
    armed_ = true;
  }
  // How many there have been since arm(). Ends it.
  int64_t disarm() {
    armed_ = false;
    return count_;
  }

  // One more; what it does if it is the one, else null.
  std::function<void()> take() {
    if (!armed_.load(std::memory_order_acquire) || count_++ != at_) return {};
    return fail_;
  }
  void pass() {
    if (const auto fail = take()) fail();
  }

 private:
  std::atomic<bool> armed_{false};
  std::atomic<int64_t> count_{0};
  int64_t at_ = 0;
  std::function<void()> fail_;
};

}  // namespace gpipe::testing
