// Makes a worker that has its own number of intra-op threads.
#pragma once

#include <functional>
#include <memory>

#include "gpipe/runtime/worker.h"

namespace gpipe {

// `prepare` runs first on the new thread; `threads`: of its operators on CPUs,
// 0 for those that LibTorch would use; `spins`: see Worker. What LibTorch would
// use on this thread and on others is left as it is.
std::unique_ptr<Worker> new_worker(std::function<void()> prepare, int threads,
                                   int spins = 0);

}  // namespace gpipe
