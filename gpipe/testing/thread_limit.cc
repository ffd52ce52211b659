#include "gpipe/testing/thread_limit.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <limits>

namespace gpipe::testing {
namespace {

constexpr int kNone = std::numeric_limits<int>::max();
std::atomic<int> left{kNone};

}  // namespace

ThreadLimit::ThreadLimit(int more) { left = more; }

ThreadLimit::~ThreadLimit() { left = kNone; }

}  // namespace gpipe::testing

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Stands before the function of the C library, for std::thread, too.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* options,
                              void* (*run)(void*), void* argument) {
  using gpipe::testing::left;
  if (left != gpipe::testing::kNone && left-- <= 0) {
    left = 0;
    return EAGAIN;
  }
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(
      dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, options, run, argument);
}

#endif
