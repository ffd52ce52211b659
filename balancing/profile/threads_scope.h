// The number of threads that operators outside of a pipeline use.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

namespace gpipe::balancing {

// Sets LibTorch's number of threads while in scope.
class ThreadsScope {
 public:
  explicit ThreadsScope(int64_t threads) : outer_(at::get_num_threads()) {
    at::set_num_threads(static_cast<int>(threads));
  }
  ~ThreadsScope() { at::set_num_threads(outer_); }
  ThreadsScope(const ThreadsScope&) = delete;
  ThreadsScope& operator=(const ThreadsScope&) = delete;

 private:
  int outer_;
};

}  // namespace gpipe::balancing
