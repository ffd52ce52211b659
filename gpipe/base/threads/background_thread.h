// Threads of gpipe that may still run when the process exits.
#pragma once

#include <thread>
#include <utility>

namespace gpipe::internal {

// The count of one background thread, from before it starts until its
// thread-local objects are destroyed.
class BackgroundCount {
 public:
  BackgroundCount();
  ~BackgroundCount();
  BackgroundCount(BackgroundCount&& other) noexcept
      : counts_(std::exchange(other.counts_, false)) {}
  BackgroundCount& operator=(BackgroundCount&&) = delete;

  // Counts until the end of the calling thread. Call it first on that thread.
  void end_with_thread();

 private:
  bool counts_ = true;
};

// Ends the process with this status, without the remaining handlers and
// destructors of exit(). Flushes the standard streams and C's files.
[[noreturn]] void end_process(int status);

// Starts a thread that runs `run`. All threads of gpipe start here, since any
// of them may still run when the process exits: std::exit() destroys neither
// objects on stacks nor leaked ones. LibTorch destroys its operators then, and
// a thread that uses one later would abort the process.
//
// If such threads run when all static objects of the image (program or shared
// library) that contains gpipe are destroyed, the process ends with the status
// given to exit(), and LibTorch's destructors do not run. Nothing waits for the
// threads. Static objects may use them and join them before.
//
// Throws std::system_error if the thread cannot start. Thread-safe.
template <typename Run>
std::thread background_thread(Run run) {
  return std::thread(
      [count = BackgroundCount(), run = std::move(run)]() mutable {
        count.end_with_thread();
        run();
      });
}

}  // namespace gpipe::internal
