#include "gpipe/base/threads/exit_gate.h"

#include <pthread.h>
#include <stdlib.h>

#include <chrono>
#include <thread>

#include "gpipe/base/threads/background_thread.h"

namespace gpipe::internal {
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
