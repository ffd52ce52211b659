// A loader of mini-batches that works ahead.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <utility>

#include "train_program/task.h"

namespace gpipe::train_program {

// The results of load(first), load(first + 1), ..., load(last - 1) in order.
// While the caller uses one, another thread loads the next. Not thread-safe.
class Prefetch {
 public:
  Prefetch(std::function<Sample(int64_t)> load, int64_t first, int64_t last)
      : load_(std::move(load)), next_(first), last_(last) {
    start();
  }

  // Returns the next sample, or throws what load() threw. Must not be called
  // after the last sample.
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
  std::future<Sample> loading_;  // last member: its destructor waits for load_
};

}  // namespace gpipe::train_program
