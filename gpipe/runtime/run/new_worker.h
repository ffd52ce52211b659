// Makes a worker with its own number of intra-op threads.
#pragma once

#include <functional>
#include <memory>

#include "gpipe/runtime/run/worker.h"

namespace gpipe::internal {

// Returns a new worker. `prepare` runs first on the new thread. `threads`:
// number of intra-op threads of its CPU operators; 0: LibTorch's default.
// `spins`: see Worker. The number of intra-op threads of the calling thread and
// of other threads is unchanged.
std::unique_ptr<Worker> new_worker(std::function<void()> prepare, int threads,
                                   int spins = 0);

}  // namespace gpipe::internal
