// Makes the n-th of several operations fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
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

}  // namespace gpipe::instruments
