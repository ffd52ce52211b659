// A loader of mini-batches that works ahead.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <utility>

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

  // Returns the next result, or throws what load() threw. Must not be called
  // after the last one.
  T next() {
    T result = loading_.get();
    start();
    return result;
  }

 private:
  void start() {
    if (next_ >= last_) return;
    loading_ = std::async(std::launch::async, load_, next_++);
  }

  std::function<T(int64_t)> load_;
  int64_t next_, last_;
  std::future<T> loading_;  // last member: its destructor waits for load_
};

}  // namespace gpipe::train_program
