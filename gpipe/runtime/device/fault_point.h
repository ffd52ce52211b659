// Fault points: places where a run may fail. A test can make each of them
// throw, to check that nothing hangs, leaks or gives wrong results afterwards.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpipe::internal {

// A function that is called at every fault point, inside the scope of its
// action. It throws the exception that a test wants there. Null except in
// tests. Threads: called by all threads that run a pipeline.
//
// `site`: what is about to be done, such as "copy-in". `partition`,
// `microbatch`: the cell; -1 for all of them.
using FaultHook = void (*)(const char* site, int64_t partition,
                           int64_t microbatch);
void set_fault_hook(FaultHook hook);

namespace detail {
extern std::atomic<FaultHook> fault_hook;
}

// Calls the fault hook, if there is one.
//
// Cost: one relaxed load and a branch that is never taken, about ten times per
// cell and once per gradient of a parameter. Each is next to at least one
// LibTorch operator, which takes a hundred times as long. A second build of the
// runtime for tests would save this, but every test run would have to compile
// it, and the tests would not test what users get.
inline void fault_point(const char* site, int64_t partition = -1,
                        int64_t microbatch = -1) {
  const FaultHook hook = detail::fault_hook.load(std::memory_order_relaxed);
  if (hook != nullptr) hook(site, partition, microbatch);
}

}  // namespace gpipe::internal
