// Detects whether an object is used in a forked child process.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace gpipe::internal {

// The process in which an object was made. fork() copies memory, but only the
// calling thread: in the child, an object that needs its own threads cannot
// work. Thread-safe.
class Origin {
 public:
  Origin() {
    [[maybe_unused]] static const int registered =
        ::pthread_atfork(nullptr, nullptr, [] { ++forks; });
    forks_ = forks;
  }
  // Returns whether this process was forked after the object was made.
  bool forked() const { return forks != forks_; }

 private:
  inline static std::atomic<int64_t> forks{
      0};          // from the first process to this
  int64_t forks_;  // at construction
};

}  // namespace gpipe::internal
