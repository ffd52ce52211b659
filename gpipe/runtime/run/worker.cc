#include "gpipe/runtime/run/worker.h"

#include <utility>

#include "gpipe/base/threads.h"

namespace gpipe::internal {

Worker::Worker(std::function<void()> prepare, int spins)
    : state_(std::make_unique<State>()),
      thread_(background_thread(
          [state = state_.get(), spins, prepare = std::move(prepare)] {
            {
              const WorkScope work(state->passes);
              prepare();
            }
            loop(*state, spins);
          })) {}

Worker::~Worker() {
  if (origin_.forked()) {
    // Destroying the Notifier would wait for the thread that waits at it. The
    // thread does not exist here, so it can neither be joined nor detached.
    state_.release();
    new std::thread(std::move(thread_));
    return;
  }
  let_pass_at_exit(state_->passes);
  ++state_->waiting;
  state_->notifier.notify();
  thread_.join();
}

void Worker::post(std::function<void()> task) {
  let_pass_at_exit(state_->passes);
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->tasks.push_back(std::move(task));
  }
  ++state_->waiting;
  state_->notifier.notify();
}

void Worker::flush() {
  auto done = std::make_shared<Countdown>(1);
  post([done] { done->count(); });
  done->wait(0);
}

void Worker::loop(State& state, int spins) {
  for (;;) {
    state.notifier.wait([&] { return state.waiting > 0; }, spins);
    --state.waiting;
    std::function<void()> task;
    {
      std::lock_guard<std::mutex> lock(state.mutex);
      if (state.tasks.empty()) return;  // the end was announced
      task = std::move(state.tasks.front());
      state.tasks.pop_front();
    }
    const WorkScope work(state.passes);
    task();
    task = nullptr;
  }
}

}  // namespace gpipe::internal
