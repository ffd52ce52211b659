#include "gpipe/runtime/worker.h"

#include <utility>

namespace gpipe {

Worker::Worker(std::function<void()> prepare, int spins)
    : spins_(spins), thread_([this, prepare = std::move(prepare)] {
        prepare();
        loop();
      }) {}

Worker::~Worker() {
  ++waiting_;
  bell_.ring();
  thread_.join();
}

void Worker::post(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  ++waiting_;
  bell_.ring();
}

void Worker::loop() {
  for (;;) {
    bell_.wait([this] { return waiting_ > 0; }, spins_);
    --waiting_;
    std::function<void()> task;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (tasks_.empty()) return;  // what was waited for is the end
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace gpipe
