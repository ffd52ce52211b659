// Limits the threads that a test may start, as the limits of a container do.
#pragma once

namespace gpipe::testing {

// While the object lives, this process can start `more` threads. After them,
// std::thread throws std::system_error. A process may have one object at a
// time.
class ThreadLimit {
 public:
  // Whether threads are limited. ASan and TSan must see them start.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr bool kWorks = false;
#else
  static constexpr bool kWorks = true;
#endif

  explicit ThreadLimit(int more);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;
};

}  // namespace gpipe::testing
