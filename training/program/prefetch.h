// A loader of mini-batches that works ahead.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "gpipe/base/threads.h"

namespace gpipe::train_program {

// The results of load(first), load(first + 1), ..., load(last - 1) in order.
// While the caller uses one, another thread loads the next. Not thread-safe.
template <typename T>
class Prefetch {
 public:
  Prefetch(std::function<T(int64_t)> load, int64_t first, int64_t last)
      : load_(std::move(load)), next_(first), last_(last) {
    start();
  }
  // Waits for load().
  ~Prefetch() {
    internal::let_pass_at_exit(passes_);
    if (thread_.joinable()) thread_.join();
  }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  // Returns the next result, or throws what load() threw. Must not be called
  // after the last one.
  T next() {
    T result = loading_.get();
    start();
    return result;
  }

 private:
  void start() {
    if (thread_.joinable()) thread_.join();
    if (next_ >= last_) return;
    std::packaged_task<T()> task([this, k = next_++] {
      const internal::WorkScope work(passes_);
      return load_(k);
    });
    loading_ = task.get_future();
    thread_ = internal::background_thread(std::move(task));
  }

  std::function<T(int64_t)> load_;
  int64_t next_, last_;
  std::future<T> loading_;
  std::atomic<bool> passes_{false};
  std::thread thread_;
};

}  // namespace gpipe::train_program
