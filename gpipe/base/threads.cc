#include "gpipe/base/threads.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>
#include <thread>

namespace gpipe::internal {
namespace {

// The background threads of this process, without the one that calls exit():
// exit() destroys its thread-local objects first.
std::atomic<int> running{0};

// The status given to exit().
std::atomic<int> exit_status{0};

// exit() calls handlers in the reverse order of their registration. This
// constructor runs after those of LibTorch, on which this image depends, and
// before all others of this image. So the handler runs between their
// destructors, if this image is the program.
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

// The constructors of a shared library run before the C library registers the
// handler that calls all destructors, and so does the handler above run after
// it. This destructor is the last one of the image, before those of LibTorch.
__attribute__((destructor(101))) void end_before_libtorch() {
  if (running > 0) end_process(exit_status);
}

}  // namespace

void end_process(int status) {
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
  ::_exit(status);
}

BackgroundCount::BackgroundCount() {
  [[maybe_unused]] static const int registered =
      ::on_exit([](int status, void*) { exit_status = status; }, nullptr);
  ++running;
}

BackgroundCount::~BackgroundCount() {
  if (counts_) --running;
}

void BackgroundCount::end_with_thread() {
  // The first thread-local object of a thread is destroyed last.
  static thread_local std::optional<BackgroundCount> kept;
  kept.emplace(std::move(*this));
}

namespace {

constexpr auto kPatience = std::chrono::seconds(1);
constexpr auto kLook = std::chrono::microseconds(100);

std::atomic<bool> is_closed{false};
std::atomic<int> openings{0};  // calls of let_pass_at_exit() by exit()
std::atomic<int> busy{0};      // threads that work
const std::atomic<bool> never{false};
thread_local const std::atomic<bool>* passes_of_work = nullptr;
thread_local bool calls_exit = false;

void enter(const std::atomic<bool>& passes) {
  for (;;) {
    const int seen = openings;
    ++busy;
    // Either close() sees the increment, or this sees the closed gate.
    if (!is_closed || passes || calls_exit) break;
    --busy;
    openings.wait(seen);
  }
  passes_of_work = &passes;
}

void leave() {
  passes_of_work = nullptr;
  --busy;
}

void close(int status, void* /*unused*/) {
  if (is_closed.exchange(true)) return;
  calls_exit = true;
  if (passes_of_work) leave();  // work has called exit()
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (busy > 0) {
    if (std::chrono::steady_clock::now() >= deadline) end_process(status);
    std::this_thread::sleep_for(kLook);
  }
}

// fork() copies no threads, so no work runs in the child but the caller's.
__attribute__((constructor)) void register_fork_handler() {
  ::pthread_atfork(nullptr, nullptr, [] { busy = passes_of_work ? 1 : 0; });
}

}  // namespace

WorkScope::WorkScope(const std::atomic<bool>& passes)
    : is_outer_(!passes_of_work) {
  if (is_outer_) enter(passes);
}
WorkScope::WorkScope() : WorkScope(never) {}
WorkScope::~WorkScope() {
  if (is_outer_) leave();
}

WaitScope::WaitScope() : passes_(passes_of_work) {
  if (passes_) leave();
}
WaitScope::~WaitScope() {
  if (passes_) enter(*passes_);
}

void close_gate_at_exit() { ::on_exit(close, nullptr); }

void let_pass_at_exit(std::atomic<bool>& passes) {
  if (!calls_exit) return;
  passes = true;
  ++openings;
  openings.notify_all();
}

}  // namespace gpipe::internal
