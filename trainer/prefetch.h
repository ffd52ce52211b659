// Mini-batches, loaded ahead of their use.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <utility>

#include "trainer/task.h"

namespace gpipe::trainer {

// load(first), load(first + 1), ... up to `last`, itself left out. While one
// is in use the next is loaded, on a thread of its own.
class Prefetch {
 public:
  Prefetch(std::function<Sample(int64_t)> load, int64_t first, int64_t last)
      : load_(std::move(load)), next_(first), last_(last) {
    start();
  }

  // The next one; none is asked for after the last. Throws what loading threw.
  Sample next() {
    Sample sample = loading_.get();
    start();
    return sample;
  }

 private:
  void start() {
    if (next_ >= last_) return;
    loading_ = std::async(std::launch::async, load_, next_++);
  }

  std::function<Sample(int64_t)> load_;
  int64_t next_, last_;
  std::future<Sample> loading_;  // last: its end is awaited first
};

}  // namespace gpipe::trainer
