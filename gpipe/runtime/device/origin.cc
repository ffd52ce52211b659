#include "gpipe/runtime/device/origin.h"

#include <pthread.h>

#include <atomic>

namespace gpipe::internal {
namespace {

std::atomic<int64_t> forks{0};  // from the first process to this one

}  // namespace

Origin::Origin() {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { ++forks; });
  forks_ = forks;
}

bool Origin::forked() const { return forks != forks_; }

}  // namespace gpipe::internal
