#include "gpipe/runtime/run/new_worker.h"

#include <ATen/Parallel.h>

#include <future>
#include <utility>

namespace gpipe::internal {

std::unique_ptr<Worker> new_worker(std::function<void()> prepare, int threads,
                                   int spins) {
  if (threads == 0) return std::make_unique<Worker>(std::move(prepare), spins);
  const int caller_threads = at::get_num_threads();
  auto prepared = std::make_shared<std::promise<void>>();
  auto worker = std::make_unique<Worker>(
      [prepare = std::move(prepare), prepared, threads] {
        prepare();
        // set_num_threads() must run before the thread's first operator, which
        // would start a team of threads on all cores. It must run after
        // LibTorch's own initialisation of the thread, which the first
        // get_num_threads() triggers and which would undo it.
        at::get_num_threads();
        at::set_num_threads(threads);
        prepared->set_value();
      },
      spins);
  prepared->get_future().wait();
  // The call also changed the default for future threads; restore it.
  at::set_num_threads(caller_threads);
  return worker;
}

}  // namespace gpipe::internal
