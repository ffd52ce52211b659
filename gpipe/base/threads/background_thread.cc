#include "gpipe/base/threads/background_thread.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <optional>

namespace gpipe::internal {
namespace {

// The background threads of this process, without the one that calls exit():
// exit() destroys its thread-local objects first.
std::atomic<int> running{0};

// exit() calls handlers in the reverse order of their registration. This
// constructor runs after those of LibTorch, on which this image depends, and
// before all others of this image. So the handler runs between their
// destructors.
__attribute__((constructor(101))) void register_handlers() {
  ::on_exit(
      [](int status, void*) {
        if (running > 0) end_process(status);
      },
      nullptr);
  // fork() copies no threads.
  ::pthread_atfork(nullptr, nullptr, [] { running = 0; });
  // dlclose() must not unload this code while exit() and LibTorch may call it.
  // The address is that of a function with internal linkage, since another copy
  // of gpipe may provide the others.
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&register_handlers), &info)) {
    ::dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

}  // namespace

void end_process(int status) {
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
  ::_exit(status);
}

BackgroundCount::BackgroundCount() { ++running; }

BackgroundCount::~BackgroundCount() {
  if (counts_) --running;
}

void BackgroundCount::end_with_thread() {
  // The first thread-local object of a thread is destroyed last.
  static thread_local std::optional<BackgroundCount> kept;
  kept.emplace(std::move(*this));
}

}  // namespace gpipe::internal
