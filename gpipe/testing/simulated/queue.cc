#include "gpipe/testing/simulated/queue.h"

#include <pthread.h>

#include <chrono>
#include <utility>

namespace gpipe::simulated {

Queue::Queue(std::uint64_t number, std::function<void()> prepare,
             std::function<void(double seconds)> sleep)
    : number_(number), sleep_(std::move(sleep)) {
  // The thread is detached. The streams of a device live as long as the
  // process, so there is no good time to join it. An idle thread accesses
  // nothing.
  std::thread thread([this, prepare = std::move(prepare)] {
    prepare();
    loop();
  });
  // The name that debuggers and `top -H` show, and by which faults/trial.cc
  // counts. Without one it would be that of the thread that has used the stream
  // first.
  ::pthread_setname_np(thread.native_handle(), "stream");
  thread.detach();
}

void Queue::push(std::function<void()> task, bool delayed) {
  add({std::move(task), delayed, /*signal=*/false});
}

void Queue::push_signal(std::function<void()> task) {
  add({std::move(task), /*delayed=*/false, /*signal=*/true});
}

void Queue::add(Task task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  filled_.notify_one();
}

void Queue::wait_until_below(std::size_t most) {
  std::unique_lock<std::mutex> lock(mutex_);
  taken_.wait(lock, [&] { return tasks_.size() < most; });
}

bool Queue::idle() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return tasks_.empty() && !busy_;
}

void Queue::set_delays(const Delays& delays) {
  std::lock_guard<std::mutex> lock(mutex_);
  delays_ = delays;
  std::seed_seq seed{delays.seed, number_};
  random_.seed(seed);
}

void Queue::sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

double Queue::next_delay() {
  if (delays_.probability <= 0 || delays_.seconds <= 0) return 0;
  std::uniform_real_distribution<double> uniform(0, 1);
  if (uniform(random_) >= delays_.probability) return 0;
  return uniform(random_) * delays_.seconds;
}

void Queue::loop() {
  for (;;) {
    Task task;
    double delay = 0;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      busy_ = false;
      filled_.wait(lock, [this] { return !tasks_.empty(); });
      task = std::move(tasks_.front());
      tasks_.pop_front();
      taken_.notify_all();
      if (task.signal) {
        task.run();  // under the lock, so that idle() cannot run in between
        continue;
      }
      busy_ = true;
      if (task.delayed) delay = next_delay();
    }
    if (delay > 0) sleep_(delay);
    task.run();
  }
}

}  // namespace gpipe::simulated
