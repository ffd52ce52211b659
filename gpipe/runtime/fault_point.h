// The places where a run may fail, as switches for tests: each can be made to
// throw, to see that nothing hangs, leaks or is wrong afterwards.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpipe {

// Asked at every fault point, in the scope of its action; throws what a test
// wants thrown there. Null but in tests. Threads: called by all that run a
// pipeline.
//
// `site`: what is about to be done, such as "copy-in". `partition` and
// `microbatch`: for which cell; -1 where it is for all of them.
using FaultHook = void (*)(const char* site, int64_t partition,
                           int64_t microbatch);
void set_fault_hook(FaultHook hook);

namespace internal {
extern std::atomic<FaultHook> fault_hook;
}

// One relaxed load and a branch that is never taken, some ten times per cell
// and once per gradient of a parameter; each stands beside at least one
// operator of LibTorch's, which takes a hundred times as long. A second build
// of the runtime for tests would save that, and cost every test run the
// compiling of it; and it would not be what users get that is tested.
inline void fault_point(const char* site, int64_t partition = -1,
                        int64_t microbatch = -1) {
  const FaultHook hook = internal::fault_hook.load(std::memory_order_relaxed);
  if (hook != nullptr) hook(site, partition, microbatch);
}

}  // namespace gpipe
